// One client: why it is limited, in every region; and another limit for it, or none.

import { html, useMemo, useState } from '../view.js';
import { Badge, Card, Field, Meter, Problem, RegionName, Search } from '../components.js';
import { ask, useAnswer } from '../control.js';
import { ChangeFlow, named } from '../change.js';
import { clock, duration, keyName, known, number, percent, rate, when } from '../format.js';
import { attributesOf, IdentityForm } from '../identity.js';
import { hrefOf } from '../router.js';

export default function Keys({ feed, route, openSignIn }) {
  const { query } = route;
  const asked = query.client_key && query.resource;
  const domain = query.domain || 'default';
  return html`<h1>Keys</h1>
    <${Card} title="Why is this client limited?">
      <p class="quiet">Every region is asked; nothing is charged.</p>
      <${IdentityForm} key=${`${query.client_key} ${query.resource}`} query=${query} label="Explain"
        onSubmit=${(fields) => route.set({ ...fields, at: Date.now() }, { push: true })} />
    <//>
    ${asked && html`<${Explained} key=${JSON.stringify(query)} feed=${feed} query=${query} domain=${domain} openSignIn=${openSignIn} />`}
    ${!asked && html`<${Busy} feed=${feed} route=${route} />`}
    <${Overrides} domain=${domain} openSignIn=${openSignIn} />`;
}

// ---- keys that are used now

const KEYS_MOST = 30;

function Busy({ feed, route }) {
  const [text, setText] = useState('');
  const rows = [];
  for (const rule of feed.rules) {
    for (const [key, point] of feed.points[rule.name]?.keys ?? []) {
      const name = keyName(key);
      if (name.toLowerCase().includes(text.trim().toLowerCase())) rows.push({ rule, key, name, point });
    }
  }
  rows.sort((one, other) => (other.point.a ?? 0) + (other.point.d ?? 0) - (one.point.a ?? 0) - (one.point.d ?? 0));
  const pick = async (row) => {
    const answer = await ask(`rules/${row.rule.id}`, { query: { domain: row.rule.domain } });
    const match = answer.ok ? answer.body.loaded.match : {};
    const resource = [match?.resource ?? 'GET /'].flat()[0].replaceAll('*', '');
    route.set({ client_key: row.name.split(' · ')[0], resource, domain: row.rule.domain, cost: '1', at: Date.now() }, { push: true });
  };
  return html`<${Card} title="The busiest keys of global rules" aside=${html`<${Search} label="Find a key" value=${text} onInput=${setText} />`}>
    ${rows.length === 0 && html`<p class="empty">${text ? 'No busy key has this in its name; explain it above.' : 'No key of a global rule has been used lately.'}</p>`}
    ${rows.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Busiest keys"><table><thead><tr><th scope="col">key</th><th scope="col" class="text">rule</th>
      <th scope="col">allowed</th><th scope="col">denied</th></tr></thead><tbody>${rows.slice(0, KEYS_MOST).map((row) => html`<tr key=${row.key}>
        <th scope="row"><button type="button" class="as-link" onClick=${() => pick(row)}>${row.name}</button></th>
        <td class="text"><a href=${hrefOf('rules', { rule: row.rule.name })}>${row.rule.id}</a></td>
        <td>${rate(row.point.a)}</td><td class=${row.point.d > 0 ? 'strong' : ''}>${rate(row.point.d)}</td></tr>`)}</tbody></table></div>`}<//>`;
}

// ---- explained

function Explained({ feed, query, domain, openSignIn }) {
  const told = useMemo(() => ({
    client_key: query.client_key, resource: query.resource, domain, cost: query.cost || '1',
    ...Object.fromEntries(attributesOf(query.attributes).map(([name, value]) => [`attributes.${name}`, value])),
  }), []);
  const [answer, again] = useAnswer('v1/explain', told, []);
  if (answer === null) return html`<p class="empty" role="status">Asking every region…</p>`;
  if (!answer.ok) return html`<${Problem} answer=${answer} openSignIn=${openSignIn} />`;
  const regions = Object.entries(answer.body.regions);
  const applying = new Map(); // rule -> {row of the first region, by region}
  for (const [region, one] of regions) {
    for (const row of one.rules ?? []) {
      if (!applying.has(row.rule)) applying.set(row.rule, { row, by: new Map() });
      applying.get(row.rule).by.set(region, row);
    }
  }
  const first = regions.find(([, one]) => one.rules)?.[1];
  return html`
    <${Card} title=${`What ${query.client_key} would be told now`} aside=${html`<button type="button" onClick=${again}>Ask again</button>`}>
      <div class="scroll" tabindex="0" role="region" aria-label="The next answer by region"><table><thead><tr><th scope="col">region</th><th scope="col" class="text">next check</th><th scope="col" class="text">why</th><th scope="col">passes in</th></tr></thead>
      <tbody>${regions.map(([region, one]) => html`<tr key=${region}><th scope="row"><${RegionName} name=${region} index=${feed.regions.indexOf(region)} /></th>
        ${one.problem ? html`<td class="text" colspan="3"><${Badge} level="warn">not known<//> ${one.problem}</td>` : html`
        <td class="text"><${Badge} level=${one.next.allowed ? 'good' : 'bad'}>${one.next.allowed ? 'allowed' : 'denied'}<//></td>
        <td class="text">${one.next.why}${one.next.rule && html`<span class="under">by <a href=${hrefOf('rules', { rule: `${domain}/${one.next.rule}` })}>${one.next.rule}</a></span>`}</td>
        <td>${one.next.allowed ? '' : known(one.next.retry_after_ms) ? duration(one.next.retry_after_ms) : 'not foretold'}</td>`}</tr>`)}</tbody></table></div>
      ${first && html`<p class="quiet">Known of it: ${Object.entries(first.attributes).map(([name, one]) => `${name} = ${one.value}${one.given ? '' : ' (from the set)'}`).join(', ')}</p>`}
    <//>
    ${[...applying].map(([rule, { row, by }]) => html`<${Applying} key=${rule} rule=${rule} row=${row} by=${by} keys=${answer.body.keys} feed=${feed} domain=${domain} query=${query} openSignIn=${openSignIn} />`)}
    ${applying.size === 0 && first && html`<p class="sentence warn"><b aria-hidden="true">!</b> <span>No rule applies to this: it is always allowed.</span></p>`}
    ${first?.others?.length > 0 && html`<details class="card"><summary>${number(first.others.length + first.others_left_out)} rules do not apply, and why</summary>
      <div class="scroll"><table><tbody>${first.others.map((one) => html`<tr><th scope="row">${one.rule}<span class="under">${one.limit}</span></th><td class="text">${one.why_not.join('; ')}</td></tr>`)}</tbody></table></div></details>`}`;
}

function Applying({ rule, row, by, keys, feed, domain, query, openSignIn }) {
  const shared = keys[row.bucket?.key];
  const total = shared ? Object.values(shared.shares).filter(known).reduce((sum, share) => sum + share, 0) : null;
  const notes = [row.mode !== 'enforce' && `in ${row.mode}`, row.override && 'an override is in force', row.blocked && 'blocked', row.canary && 'its canary', row.unlimited && 'unlimited'].filter(Boolean);
  return html`<${Card} title=${`Rule ${rule}`} aside=${html`<span class="quiet">${row.limit}${notes.length > 0 ? ` · ${notes.join(', ')}` : ''}</span>`}>
    <div class="scroll" tabindex="0" role="region" aria-label=${`Buckets of ${rule}`}><table class="wide-table"><thead><tr><th scope="col">region</th><th scope="col" class="text">left</th><th scope="col">full again in</th>
      ${shared && html`<th scope="col">share</th><th scope="col">base</th><th scope="col">wants</th><th scope="col">session left</th>`}<th scope="col">leased here</th></tr></thead>
      <tbody>${[...by].map(([region, { bucket }]) => html`<tr key=${region}><th scope="row"><${RegionName} name=${region} index=${feed.regions.indexOf(region)} /></th>
        ${bucket === null ? html`<td class="text" colspan="7">no bucket</td>` : html`
        <td class="text"><${Meter} part=${bucket.remaining / bucket.limit} label=${`${number(bucket.remaining)} of ${number(bucket.limit)}`} /></td>
        <td>${duration(bucket.reset_after_ms)}</td>
        ${shared && html`<td>${percent(shared.shares[region])}<span class="under">${bucket.share ?? ''}</span></td><td>${percent(shared.bases[region])}</td>
          <td>${percent(shared.wants[region] || null)}</td><td>${duration(bucket.session_left_ms)}</td>`}
        <td>${number(bucket.leased_here)}</td>`}</tr>`)}</tbody>
      ${shared && html`<tfoot><tr><th scope="row">together</th><td></td><td></td><td class="strong">${percent(total)}</td><td colspan="4" class="quiet">as granted, without what was given back</td></tr></tfoot>`}</table></div>
    ${shared?.history.length > 0 && html`<details><summary>What the log granted of it lately</summary><div class="scroll"><table><thead><tr><th scope="col">at</th><th scope="col" class="text">region</th>
      <th scope="col" class="text">kind</th><th scope="col">share</th><th scope="col">record</th></tr></thead><tbody>${shared.history.slice(0, 20).map((one) => html`<tr key=${one.n}><td>${clock(one.at_ms)}</td>
      <td class="text">${one.region}</td><td class="text">${one.kind === 'grow' ? 'grow: gives' : 'keep: takes back'}</td><td>${percent(one.units)}</td><td>${one.epoch}.${one.n}</td></tr>`)}</tbody></table></div></details>`}
    <details><summary>Override or block this key</summary><${NewOverride} rule=${rule} row=${row} query=${query} domain=${domain} openSignIn=${openSignIn} /></details>
  <//>`;
}

// ---- overrides

const WHATS = [['multiply', 'times its limit'], ['block', 'block it'], ['unlimited', 'no limit']];
const HOURS = [[1, '1 hour'], [8, '8 hours'], [48, '2 days'], [168, '7 days'], [0, 'until it is ended']];

function NewOverride({ rule, row, query, domain, openSignIn }) {
  const given = { client_key: query.client_key, resource: query.resource, ...Object.fromEntries(attributesOf(query.attributes)) };
  const [what, setWhat] = useState('multiply');
  const [factor, setFactor] = useState('2');
  const [hours, setHours] = useState(8);
  const [since, setSince] = useState(() => Date.now());
  const key = Object.fromEntries(row.key.map((name) => [name, given[name] ?? '']));
  const until = hours > 0 ? { until: new Date(since + hours * 3_600_000).toISOString().replace(/\.\d+Z/, 'Z') } : {};
  const override = { rule, key, ...(what === 'multiply' ? { multiply: Number(factor) } : { [what]: true }), ...until };
  const body = JSON.stringify(override);
  const send = ({ dryRun, headers }) => ask('overrides', { method: 'PUT', query: { domain, dry_run: dryRun ? 'true' : null }, body, headers });
  return html`<p class="quiet">For ${named(key)}, of rule ${rule} alone.</p>
    <div class="fields"><${Field} label="What"><select value=${what} onChange=${(event) => setWhat(event.target.value)}>${WHATS.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select><//>
      ${what === 'multiply' && html`<${Field} label="Times"><input type="number" min="0.01" max="1000" step="any" value=${factor} onInput=${(event) => setFactor(event.target.value)} /><//>`}
      <${Field} label="For how long"><select value=${hours} onChange=${(event) => { setHours(Number(event.target.value)); setSince(Date.now()); }}>${HOURS.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select><//></div>
    <${ChangeFlow} send=${send} signature=${body} domain=${domain} label=${what === 'block' ? 'Block it' : 'Put it into force'} danger=${what === 'block'} openSignIn=${openSignIn} />`;
}

function Overrides({ domain, openSignIn }) {
  const [answer] = useAnswer('overrides', { domain, limit: 100 }, [domain], { every: 5_000 });
  if (answer === null) return null;
  if (!answer.ok) return answer.status === 401 || answer.status === 403 ? html`<${Card} title="Overrides in force"><p class="empty">Told to those who are signed in. <button type="button" onClick=${openSignIn}>Sign in</button></p><//>` : html`<${Problem} answer=${answer} openSignIn=${openSignIn} />`;
  const { overrides, next } = answer.body;
  return html`<${Card} title="Overrides in force">
    ${overrides.length === 0 && html`<p class="empty">None in domain ${domain}.</p>`}
    ${overrides.map((one) => html`<details key=${one.id} class="override"><summary><b>${named(one.key)}</b> of ${one.rule}: ${one.in_words}
      <span class="quiet">${one.until_ms ? ` until ${when(one.until_ms)}` : ' without an end'}${one.source.why ? ` · ${one.source.why}` : ''}</span></summary>
      <${Ending} one=${one} domain=${domain} openSignIn=${openSignIn} /></details>`)}
    ${next && html`<p class="quiet">The first hundred; <code>apportion override list</code> has all.</p>`}<//>`;
}

function Ending({ one, domain, openSignIn }) {
  const send = ({ dryRun, headers }) => ask(`overrides/${one.id}`, { method: 'DELETE', query: { domain, dry_run: dryRun ? 'true' : null }, headers });
  return html`<${ChangeFlow} send=${send} signature=${one.id} domain=${domain} label="End it now" openSignIn=${openSignIn} />`;
}
