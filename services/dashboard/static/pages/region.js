// One region in all its parts: link, session, shards, nodes, leases, what was decided without Redis, clocks.

import { html, useEffect, useState } from '../view.js';
import { Badge, Card, Facts, Link, Spark } from '../components.js';
import { duration, keyName, known, NOT_KNOWN, number, percent, rate } from '../format.js';
import { added, boundOf, together, total } from '../histograms.js';
import { hrefOf } from '../router.js';

const LOOK_EVERY_MS = 2000;
const OVER_LOOKS = 5; // load and latency are of the last ten seconds

export default function Region({ feed, route }) {
  const { status } = feed;
  const name = route.query.name ?? status?.regions[0]?.name;
  const looks = useLooks(name);
  if (!status) return html`<h1>Region</h1><p class="empty" role="status">Waiting for the first data…</p>`;
  const region = status.regions.find((one) => one.name === name);
  const head = html`<div class="page-head"><h1>${name ?? 'Region'}</h1>
    <label class="pick">Region <select value=${name} onChange=${(event) => route.set({ name: event.target.value }, { push: true })}>
      ${status.regions.map((one) => html`<option value=${one.name}>${one.name}</option>`)}</select></label></div>`;
  if (!region) return html`${head}<p class="empty">${name ? `No region is called ${name}.` : 'No region has reported yet.'}</p>`;
  const last = looks.at(-1);
  return html`${head}
    <${Now} region=${region} feed=${feed} agent=${last?.agent} />
    ${last?.failed && html`<p class="sentence warn"><b aria-hidden="true">!</b> <span>Its parts cannot be asked just now: ${last.failed}</span></p>`}
    ${last && !last.failed && html`
      <${Shards} looks=${looks.filter((one) => !one.failed)} />
      <${Nodes} look=${last} />
      <div class="columns even"><${Busiest} keys=${last.busiest} feed=${feed} /><${SyncCard} agent=${last.agent} /></div>`}`;
}

// The last looks at a region, the newest last; one that failed is {failed}.
function useLooks(name) {
  const [looks, setLooks] = useState([]);
  useEffect(() => {
    setLooks([]);
    if (!name) return undefined;
    let wanted = true;
    const look = async () => {
      if (document.hidden) return;
      let found;
      try {
        const answer = await fetch(`v1/region?${new URLSearchParams({ name })}`, { cache: 'no-store' });
        found = answer.ok ? await answer.json() : { failed: `the dashboard answers ${answer.status}` };
      } catch {
        found = { failed: 'the dashboard does not answer' };
      }
      if (wanted) setLooks((before) => [...before.slice(-OVER_LOOKS), found]);
    };
    look();
    const timer = setInterval(look, LOOK_EVERY_MS);
    return () => {
      wanted = false;
      clearInterval(timer);
    };
  }, [name]);
  return looks;
}

function Now({ region, feed, agent }) {
  const trail = feed.trails.get(region.name);
  const bases = agent?.bases ? [...new Set(Object.values(agent.bases))] : [];
  return html`<${Card} title="Now" kind=${`region ${region.link}`} aside=${html`<${Link} region=${region} />`}>
    <div class="region-rates"><div><span class="quiet">allowed</span> <b>${rate(region.allowed_per_s)}</b><${Spark} values=${trail?.allowed ?? []} /></div>
      <div><span class="quiet">denied</span> <b>${rate(region.denied_per_s)}</b><${Spark} values=${trail?.denied ?? []} kind="denied" /></div></div>
    <${Facts} kind="grid" rows=${[
      ['session left', known(region.session_left_ms) && region.session_left_ms <= 0 ? 'ended' : duration(region.session_left_ms), region.session_left_ms === 0 ? 'warn' : ''],
      ['consent left', known(region.consent_left_ms) && region.consent_left_ms <= 0 ? 'ended' : duration(region.consent_left_ms)],
      ['base', bases.length > 0 ? bases.map(percent).join(', ') : NOT_KNOWN],
      ['decided without Redis', rate(region.without_redis_per_s), region.without_redis_per_s > 0 ? 'bad' : ''],
      ['decided at the floor', rate(region.at_floor_per_s)],
      ['sync lag', agent ? duration(agent.link_age_ms) : NOT_KNOWN, agent?.link_age_ms > 3000 ? 'bad' : ''],
    ]} /><//>`;
}

const BREAKER = { closed: ['good', 'closed'], open: ['bad', 'open'] };

// One row a shard: what its nodes see of it, over the last seconds; and what the agent knows of its session.
function Shards({ looks }) {
  const last = looks.at(-1);
  const first = looks[0];
  const seconds = (last.now_ms - first.now_ms) / 1000;
  const points = new Map((last.agent?.points ?? []).map((point) => [point.point, { point, seen: [] }]));
  for (const node of last.nodes) {
    for (const shard of node.view?.shards ?? []) {
      if (!points.has(shard.point)) points.set(shard.point, { point: null, seen: [] });
      const before = first.nodes.find((one) => one.url === node.url)?.view?.shards.find((one) => one.point === shard.point);
      points.get(shard.point).seen.push({ ...shard, added: shard.took && added(before?.took, shard.took), missed: shard.unanswered - (before?.unanswered ?? shard.unanswered) });
    }
  }
  return html`<${Card} title="Shards" aside=${html`<span class="quiet">Redis servers; load and latency of the last ${seconds > 0 ? duration(seconds * 1000) : 'seconds'}</span>`}>
    ${points.size === 0 && html`<p class="empty">None is known yet.</p>`}
    ${points.size > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Shards"><table class="wide-table"><thead><tr><th scope="col">server</th><th scope="col" class="text">reached</th><th scope="col" class="text">breaker</th>
      <th scope="col">calls</th><th scope="col">half within</th><th scope="col">99 % within</th><th scope="col">no reply</th><th scope="col" class="text">hot keys</th><th scope="col">session left</th><th scope="col">consent left</th></tr></thead>
    <tbody>${[...points].map(([name, { point, seen }]) => html`<${Shard} key=${name} name=${name} point=${point} seen=${seen} seconds=${seconds} hot=${last.hot?.[name] ?? []} />`)}</tbody></table></div>`}<//>`;
}

function Shard({ name, point, seen, seconds, hot }) {
  const took = together(seen.map((one) => one.added).filter(Boolean));
  const open = seen.filter((one) => one.breaker === 'open').length;
  const [level, word] = BREAKER[open > 0 ? 'open' : 'closed'];
  const missed = seen.reduce((sum, one) => sum + Math.max(0, one.missed), 0);
  const reached = point ? point.ok : seen.some((one) => one.answers);
  return html`<tr><th scope="row">${name.split('/')[0]}</th>
    <td class="text"><${Badge} level=${reached ? 'good' : 'bad'}>${reached ? 'yes' : 'no'}<//>${point?.error && html`<span class="under">${point.error}</span>`}</td>
    <td class="text">${seen.length === 0 ? NOT_KNOWN : html`<${Badge} level=${level}>${word}${open > 0 && open < seen.length ? ` at ${open} of ${seen.length} nodes` : ''}<//>`}</td>
    <td>${took && seconds > 0 ? rate(total(took) / seconds) : NOT_KNOWN}</td><td>${took ? within(boundOf(took, 0.5)) : NOT_KNOWN}</td><td>${took ? within(boundOf(took, 0.99)) : NOT_KNOWN}</td>
    <td class=${missed > 0 ? 'bad' : ''}>${number(missed)}</td>
    <td class="text">${hot.length === 0 ? NOT_KNOWN : hot.map((one) => html`<span class="hot" key=${one.key}>${keyName(one.key)} <b>${rate(one.allowed_per_s + one.denied_per_s)}</b>${one.split && html` <small>about, ${one.parts} of its ${one.split} parts</small>`}</span>`)}</td><td>${point ? duration(point.session_left_ms) : NOT_KNOWN}</td><td>${point ? duration(point.consent_left_ms) : NOT_KNOWN}</td></tr>`;
}

const within = (ms) => (ms === null ? NOT_KNOWN : ms === Infinity ? 'over 1 s' : `${Number(ms.toPrecision(3))} ms`);

const degradedWords = (degraded) => Object.entries(degraded).filter(([, count]) => count > 0).map(([cause, count]) => `${number(count)} ${cause}`).join(', ') || 'none';

function Nodes({ look }) {
  const beats = new Map((look.agent?.nodes ?? []).map((beat) => [beat.node, beat]));
  const named = new Set(look.nodes.map((node) => node.view?.node));
  const others = [...beats.values()].filter((beat) => !named.has(beat.node));
  return html`<${Card} title="Nodes">
    ${look.nodes.length + others.length === 0 && html`<p class="empty">No node is known.</p>`}
    ${look.nodes.length + others.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Nodes"><table class="wide-table"><thead><tr><th scope="col">node</th><th scope="col" class="text">takes checks</th><th scope="col">rules</th>
      <th scope="col">tokens leased</th><th scope="col" class="text">decided apart from the rule's buckets, since its start</th><th scope="col">clock</th><th scope="col">last beat</th></tr></thead>
    <tbody>${look.nodes.map((node) => html`<${Node} key=${node.url} node=${node} beat=${beats.get(node.view?.node)} />`)}
      ${others.map((beat) => html`<tr key=${beat.node}><th scope="row">${beat.node}<span class="under">${beat.address}</span></th><td class="text quiet">not asked: not in the settings here</td>
        <td>${number(beat.rules_version)}</td><td></td><td></td><td></td><td>${duration(beat.age_ms)} ago</td></tr>`)}</tbody></table></div>`}<//>`;
}

const CLOCK_BAD_MS = 500;

function Node({ node, beat }) {
  const { view } = node;
  const off = node.clock_error_ms;
  const clock = !known(off) ? NOT_KNOWN : `${off > 0 ? '+' : ''}${number(off)} ± ${number(node.give_or_take_ms)} ms`;
  return html`<tr><th scope="row">${view?.node ?? node.url}<span class="under">${node.url}</span></th>
    <td class="text">${!view ? html`<${Badge} level="bad">no answer<//>` : view.ready ? html`<${Badge} level="good">yes<//>` : html`<${Badge} level="warn">${view.draining ? 'draining' : 'not ready'}<//>`}</td>
    <td>${number(view?.rules_version)}</td><td>${number(view?.leases?.out)}</td><td class="text">${view ? degradedWords(view.degraded) : NOT_KNOWN}</td>
    <td class=${known(off) && Math.abs(off) > CLOCK_BAD_MS + node.give_or_take_ms ? 'bad' : ''}>${clock}</td><td>${beat ? `${duration(beat.age_ms)} ago` : NOT_KNOWN}</td></tr>`;
}

function Busiest({ keys, feed }) {
  const domainOf = (key) => /^rl:\{[^}]*\}:([^:]*):/.exec(key)?.[1] ?? '';
  return html`<${Card} title="Busiest keys of global rules here">
    ${keys.length === 0 && html`<p class="empty">None is used just now.</p>`}
    ${keys.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Busiest keys"><table><thead><tr><th scope="col">key</th><th scope="col" class="text">rule</th><th scope="col">allowed</th><th scope="col">denied</th></tr></thead>
      <tbody>${keys.map((one) => {
        const name = domainOf(one.key);
        const rule = feed.rules.find((known_) => known_.name === name);
        return html`<tr key=${one.key}><th scope="row">${keyName(one.key)}</th><td class="text"><a href=${hrefOf('rules', { rule: name })}>${rule?.id ?? name}</a></td>
          <td>${rate(one.allowed_per_s)}</td><td class=${one.denied_per_s > 0 ? 'strong' : ''}>${rate(one.denied_per_s)}</td></tr>`;
      })}</tbody></table></div>`}<//>`;
}

const OLD_MS = 3000;

function SyncCard({ agent }) {
  return html`<${Card} title="Its agent" aside=${agent?.age_ms > OLD_MS && html`<span class="warn">as it was ${duration(agent.age_ms)} ago</span>`}>
    ${!agent && html`<p class="empty">It has not been heard, and cannot be asked from here.</p>`}
    ${agent && html`<${Facts} kind="grid" rows=${[
      ['agent', html`<span title=${agent.agent}>${(agent.agent ?? '').slice(0, 8)}…</span>`], ['epoch', number(agent.epoch)], ['session', number(agent.session)], ['active', agent.active ? 'yes' : 'standing by'],
      ['log last read', `${duration(agent.link_age_ms)} ago`], ['records read', number(agent.records_read)], ['reports sent', number(agent.reports_sent)],
      ['not sent', number(agent.sends_failed), agent.sends_failed > 0 ? 'warn' : ''], ['records not understood', number(agent.malformed), agent.malformed > 0 ? 'bad' : ''],
      ['refused by an invariant', number(agent.violations), agent.violations > 0 ? 'bad' : ''], ['keys without room', number(agent.keys_refused), agent.keys_refused > 0 ? 'warn' : ''],
      ['rules version', number(agent.rules_version)],
    ]} />`}<//>`;
}
