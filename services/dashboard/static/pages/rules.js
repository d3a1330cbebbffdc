// Rules: list and search, one rule with its change, versions and what is between them, shadow beside enforced.

import { html, useMemo, useState } from '../view.js';
import { Badge, Card, Facts, Problem, Search, Segments } from '../components.js';
import { ask, useAnswer } from '../control.js';
import { Accepted, ChangeFlow, Effect } from '../change.js';
import { wordsOf } from '../changes.js';
import { keyOf, known, number, percent, rate, when } from '../format.js';
import { hrefOf } from '../router.js';

const ROWS_AT_FIRST = 50;
const ROWS_MORE = 100;
const ROWS_MOST = 350; // all of them tell their rates every second; what is further down is found by its words
const VIEWS = [['', 'Rules'], ['versions', 'Versions'], ['shadow', 'Shadow']];

export default function Rules({ feed, route, openSignIn }) {
  const domains = [...new Set(feed.rules.map((rule) => rule.domain))];
  const [ofRule, ruleId] = (route.query.rule ?? '').split('/', 2);
  const domain = ofRule || route.query.domain || domains[0] || 'default';
  const view = route.query.view ?? '';
  const parts = { feed, route, domain, openSignIn };
  return html`
    <div class="page-head"><h1>Rules</h1>
      <${Segments} label="What of the rules" options=${VIEWS} value=${view} onPick=${(one) => route.set({ view: one, rule: null }, { push: true })} /></div>
    ${domains.length > 1 && html`<label class="pick">Domain <select value=${domain} onChange=${(event) => route.set({ domain: event.target.value, rule: null })}>
      ${domains.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>`}
    ${view === 'versions' ? html`<${Versions} ...${parts} key=${domain} />`
      : view === 'shadow' ? html`<${Shadow} ...${parts} />`
      : ruleId ? html`<${One} ...${parts} ruleId=${ruleId} key=${`${domain}/${ruleId}`} />`
      : html`<${List} ...${parts} />`}`;
}

export const scopeWords = (rule) => (rule.distribution === 'home' ? 'all regions, one bucket a key' : rule.scope !== 'global' ? 'in each region' : rule.distribution === 'adaptive' ? 'all regions, by demand' : 'all regions, by the bases');

const MODES = { shadow: 'info', soft: 'warn', enforce: 'good' };
const Mode = ({ mode }) => html`<${Badge} level=${MODES[mode] ?? 'info'}>${mode}<//>`;

function List({ feed, route, domain }) {
  const [most, setMost] = useState(ROWS_AT_FIRST);
  const text = route.query.q ?? '';
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = useMemo(() => feed.rules.filter((rule) => {
    const said = `${rule.id} ${rule.description} ${rule.limit} ${rule.mode} ${scopeWords(rule)}`.toLowerCase();
    return rule.domain === domain && words.every((word) => said.includes(word));
  }), [feed.rules, domain, text]);
  const shown = found.slice(0, most);
  return html`<${Card} title=${`${number(found.length)} ${found.length === 1 ? 'rule' : 'rules'}`}
      aside=${html`<${Search} label="Find rules" value=${text} onInput=${(value) => route.set({ q: value })} />`}>
    ${found.length === 0 && html`<p class="empty">${text ? 'No rule has these words.' : 'There are no rules yet.'}</p>`}
    ${shown.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Rules"><table class="wide-table"><thead><tr><th scope="col">rule</th><th scope="col" class="text">limit</th>
      <th scope="col" class="text">counted</th><th scope="col" class="text">mode</th><th scope="col">allowed</th><th scope="col">denied</th></tr></thead>
      <tbody>${shown.map((rule) => {
        const total = feed.points[rule.name]?.total;
        return html`<tr key=${rule.name}><th scope="row"><a href=${hrefOf('rules', { rule: rule.name })}>${rule.id}</a>
          ${rule.description && html`<span class="under">${rule.description}</span>`}</th>
          <td class="text">${rule.limit}</td><td class="text">${scopeWords(rule)}</td><td class="text"><${Mode} mode=${rule.mode} /></td>
          <td>${rate(total?.a)}</td><td class=${total?.d > 0 ? 'strong' : ''}>${rate(total?.d)}</td></tr>`;
      })}</tbody></table></div>`}
    ${found.length > shown.length && (most < ROWS_MOST
      ? html`<button type="button" class="more" onClick=${() => setMost(most + ROWS_MORE)}>Show ${number(Math.min(found.length, most + ROWS_MORE))} of ${number(found.length)}</button>`
      : html`<p class="quiet">The first ${number(shown.length)} of ${number(found.length)}: words above find the others.</p>`)}
  <//>`;
}

// ---- one rule

function One({ feed, domain, ruleId, openSignIn, route }) {
  const rule = feed.rules.find((one) => one.name === `${domain}/${ruleId}`);
  const [answer, again] = useAnswer(`rules/${ruleId}`, { domain }, [domain, ruleId, rule?.version]);
  const [made, setMade] = useState(null);
  const done = (one) => {
    setMade(one);
    again();
    return true;
  };
  const total = feed.points[`${domain}/${ruleId}`]?.total;
  return html`<p class="link-line"><a href="#/rules">All rules</a></p>
    <${Card} title=${ruleId} aside=${rule && html`<${Mode} mode=${rule.mode} />`}>
      ${!rule && html`<p class="empty">No rule of this name is in force.</p>`}
      ${rule && html`${rule.description && html`<p class="quiet">${rule.description}</p>`}
        <${Facts} kind="grid" rows=${[
          ['limit', rule.limit], ['counted', scopeWords(rule)], ['version', number(rule.version)],
          ['allowed now', rate(total?.a)], ['denied now', rate(total?.d)],
          ...factsOf(answer),
        ]} />
        ${rule.scope === 'global' && html`<p class="link-line"><a href=${hrefOf('quota', { rule: rule.name })}>Its shares over time</a></p>`}`}
    <//>
    <${Accepted} made=${made} />
    ${answer && !answer.ok && html`<${Problem} answer=${answer} openSignIn=${openSignIn} />`}
    ${answer?.ok && html`<${Editor} key=${answer.body.version} held=${answer} domain=${domain} ruleId=${ruleId} onDone=${done} openSignIn=${openSignIn} />
      <${Removal} held=${answer} domain=${domain} ruleId=${ruleId} openSignIn=${openSignIn} onDone=${() => route.set({ rule: null })} />`}`;
}

function factsOf(answer) {
  const loaded = answer?.ok ? answer.body.loaded : null;
  if (!loaded) return [];
  const match = Object.entries(loaded.match ?? {}).map(([name, values]) => `${name}: ${[values].flat().join(' or ')}`);
  return [
    ['matches', match.join('; ') || 'everything'], ['for each', loaded.key?.join(' and ') || 'all together'],
    ['without Redis', loaded.on_store_failure], ['overrides', number(loaded.overrides)],
  ];
}

function Editor({ held, domain, ruleId, onDone, openSignIn }) {
  const source = useMemo(() => JSON.stringify(held.body.source, null, 2), [held]);
  const [text, setText] = useState(source);
  const wrong = useMemo(() => notJson(text), [text]);
  const send = ({ dryRun, headers }) => ask(`rules/${ruleId}`, {
    method: 'PUT', query: { domain, dry_run: dryRun ? 'true' : null }, body: text,
    headers: { ...headers, ...(held.etag ? { 'If-Match': held.etag } : {}) },
  });
  return html`<${Card} title="Change it" aside=${text !== source && html`<button type="button" onClick=${() => setText(source)}>As it was</button>`}>
    <label class="field"><span>The rule as its author writes it <small>JSON</small></span>
      <textarea value=${text} spellcheck=${false} rows="12" onInput=${(event) => setText(event.target.value)}></textarea></label>
    ${wrong && html`<p class="bad" role="status">Not JSON yet: ${wrong}</p>`}
    <${ChangeFlow} send=${send} signature=${text} domain=${domain} label="Put it into force" ready=${!wrong && text !== source} onDone=${onDone} openSignIn=${openSignIn} />
  <//>`;
}

function notJson(text) {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return error.message;
  }
}

function Removal({ held, domain, ruleId, onDone, openSignIn }) {
  const send = ({ dryRun, headers }) => ask(`rules/${ruleId}`, {
    method: 'DELETE', query: { domain, dry_run: dryRun ? 'true' : null },
    headers: { ...headers, ...(held.etag ? { 'If-Match': held.etag } : {}) },
  });
  return html`<details class="card"><summary>Remove this rule</summary>
    <${ChangeFlow} send=${send} signature=${ruleId} domain=${domain} label=${`Remove ${ruleId}`} danger onDone=${onDone} openSignIn=${openSignIn} /></details>`;
}

// ---- versions

function Versions({ domain, route, openSignIn }) {
  const [answer, again] = useAnswer(`rulesets/${domain}/versions`, { limit: 100 }, [domain]);
  const versions = answer?.ok ? answer.body.versions : [];
  const newest = versions[0]?.version;
  const to = Number(route.query.to) || newest;
  const from = Number(route.query.from) || versions.find((one) => one.version < to)?.version;
  if (answer === null) return html`<p class="empty" role="status">Asking…</p>`;
  if (!answer.ok) return html`<${Problem} answer=${answer} openSignIn=${openSignIn} />`;
  return html`<div class="columns even">
    <${Card} title="Versions" aside=${html`<button type="button" onClick=${again}>Read again</button>`}>
      <div class="scroll" tabindex="0" role="region" aria-label="Versions"><table><thead><tr><th scope="col">version</th><th scope="col" class="text">what, who, when</th><th scope="col">from</th><th scope="col">to</th></tr></thead>
      <tbody>${versions.map((one) => html`<tr key=${one.version} class=${one.version === to ? 'picked' : ''}><th scope="row">${one.version}</th>
        <td class="text">${wordsOf(one)}${one.rule_id && html` <b>${one.rule_id}</b>`}<span class="under">${one.author} · ${when(one.at_ms)}${one.reason && ` · ${one.reason}`}</span></td>
        <td><input type="radio" name="from" aria-label=${`from version ${one.version}`} checked=${one.version === from} onChange=${() => route.set({ from: one.version })} /></td>
        <td><input type="radio" name="to" aria-label=${`to version ${one.version}`} checked=${one.version === to} onChange=${() => route.set({ to: one.version })} /></td></tr>`)}</tbody></table></div>
    <//>
    <div class="stack">
      <${Card} title=${known(from) ? `From ${from} to ${to}` : 'Between two versions'}>
        ${known(from) ? html`<${Diff} domain=${domain} from=${from} to=${to} openSignIn=${openSignIn} />` : html`<p class="empty">There is one version only.</p>`}<//>
      ${known(from) && from !== newest && html`<${Card} title=${`Go back to version ${from}`}>
        <p class="quiet">A new version with the old document: it can itself be gone back from.</p>
        <${Rollback} domain=${domain} version=${from} again=${again} openSignIn=${openSignIn} /><//>`}
    </div></div>`;
}

function Diff({ domain, from, to, openSignIn }) {
  const [answer] = useAnswer(`rulesets/${domain}/diff`, { from, to }, [domain, from, to]);
  if (answer === null) return html`<p class="empty" role="status">Asking…</p>`;
  return answer.ok ? html`<${Effect} effect=${answer.body.effect} />` : html`<${Problem} answer=${answer} openSignIn=${openSignIn} />`;
}

function Rollback({ domain, version, again, openSignIn }) {
  const send = ({ dryRun, headers }) => ask(`rulesets/${domain}:rollback`, {
    method: 'POST', query: { to: version, dry_run: dryRun ? 'true' : null }, headers,
  });
  return html`<${ChangeFlow} send=${send} signature=${`${version}`} domain=${domain} label=${`Go back to version ${version}`} onDone=${again} openSignIn=${openSignIn} />`;
}

// ---- shadow beside enforced

const LOOK_EVERY_MS = 5_000;

function Shadow({ feed, domain, openSignIn }) {
  const [answer] = useAnswer('v1/shadow', { domain }, [domain], { every: LOOK_EVERY_MS });
  if (answer === null) return html`<p class="empty" role="status">Asking every node…</p>`;
  if (!answer.ok) return html`<${Problem} answer=${answer} openSignIn=${openSignIn} />`;
  const counted = answer.body.rules;
  const rules = feed.rules.filter((rule) => rule.domain === domain);
  const rows = [...rules.filter((rule) => counted[rule.id] || rule.mode !== 'enforce'), ...rules.filter((rule) => !counted[rule.id] && rule.mode === 'enforce')].slice(0, 100);
  const silent = answer.body.nodes_silent;
  const examples = Object.entries(counted).flatMap(([id, one]) => one.examples.map((example) => ({ id, ...example })));
  return html`
    ${silent.length > 0 && html`<p class="sentence warn"><b aria-hidden="true">!</b> <span>${silent.length} of ${answer.body.nodes_asked} nodes do not answer, so their counts are missing: ${silent.join(', ')}</span></p>`}
    <${Card} title="Shadow beside enforced">
      <p class="quiet">What rules in shadow would have done since each node began, beside what is in force. A rule gets into shadow by its mode.</p>
      <div class="scroll" tabindex="0" role="region" aria-label="Shadow beside enforced"><table class="wide-table"><thead><tr><th scope="col">rule</th><th scope="col" class="text">mode</th>
        <th scope="col">allowed</th><th scope="col">denied</th><th scope="col">would allow</th><th scope="col">would deny</th><th scope="col">part denied</th></tr></thead>
      <tbody>${rows.map((rule) => {
        const one = counted[rule.id];
        const total = feed.points[rule.name]?.total;
        const asked = one ? one.would_allow + one.would_deny : 0;
        return html`<tr key=${rule.name}><th scope="row"><a href=${hrefOf('rules', { rule: rule.name })}>${rule.id}</a><span class="under">${rule.limit}</span></th>
          <td class="text"><${Mode} mode=${rule.mode} /></td><td>${rate(total?.a)}</td><td>${rate(total?.d)}</td>
          <td>${number(one?.would_allow)}</td><td class=${one?.would_deny > 0 ? 'strong' : ''}>${number(one?.would_deny)}</td>
          <td>${asked > 0 ? percent((one.would_deny / asked) * 10_000) : '–'}</td></tr>`;
      })}</tbody></table></div><//>
    ${examples.length > 0 && html`<${Card} title="Keys that would have been denied last"><div class="scroll" tabindex="0" role="region" aria-label="Keys"><table><thead><tr><th scope="col">key</th>
      <th scope="col" class="text">rule</th><th scope="col" class="text">region</th><th scope="col">times</th></tr></thead><tbody>${examples.slice(0, 40).map((one) => html`<tr>
      <th scope="row">${keyOf(one.key)}</th><td class="text">${one.id}</td><td class="text">${one.region}</td><td>${number(one.times)}</td></tr>`)}</tbody></table></div><//>`}`;
}
