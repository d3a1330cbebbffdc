// How everything is, at a glance: what is wrong, regions, limits by how near they are, what changed.

import { html, useState } from '../view.js';
import { byTrouble, Card, Link, Meter, RegionName, Search, Sentences, Spark } from '../components.js';
import { Changes } from '../changes.js';
import { duration, keyName, known, NOT_KNOWN, number, percent, rate } from '../format.js';
import { levelOf, quotasByNearness } from '../nearness.js';
import { hrefOf } from '../router.js';

const CARDS_MOST = 9; // more regions are shown as rows
const QUOTAS_AT_FIRST = 10;
const QUOTAS_MOST = 100;

export default function Overview({ feed }) {
  const { status } = feed;
  if (!status) return html`<h1>Overview</h1><p class="empty" role="status">Waiting for the first data…</p>`;
  return html`
    <h1>Overview</h1>
    <${Sentences} status=${status} well="All regions are linked and every store answers." />
    <${Figures} feed=${feed} />
    <section aria-labelledby="regions-title"><h2 id="regions-title">Regions</h2>
      ${status.regions.length === 0 && html`<p class="empty">No region has reported yet.</p>`}
      ${status.regions.length <= CARDS_MOST
        ? html`<ul class="regions">${status.regions.map(
            (region, index) => html`<${RegionCard} key=${region.name} region=${region} index=${index} feed=${feed} />`,
          )}</ul>`
        : html`<${RegionRows} regions=${status.regions} />`}
    </section>
    <div class="columns">
      <${Quotas} feed=${feed} />
      <${Card} title="In the last hour"><${Changes} /><//>
    </div>`;
}

const summed = (regions, name) => {
  const values = regions.map((region) => region[name]).filter(known);
  return values.length > 0 ? values.reduce((sum, value) => sum + value, 0) : null;
};

function Figures({ feed }) {
  const { regions, leader } = feed.status;
  const linked = regions.filter((region) => region.link === 'linked').length;
  const [allowed, denied] = [summed(regions, 'allowed_per_s'), summed(regions, 'denied_per_s')];
  const asked = known(allowed) ? allowed + (denied ?? 0) : null;
  return html`<dl class="figures">
    <${Figure} name="regions linked" value=${`${linked} of ${regions.length}`} level=${linked < regions.length ? 'bad' : ''} />
    <${Figure} name="allowed" value=${rate(allowed)} />
    <${Figure} name="denied" value=${rate(denied)} note=${asked > 0 ? `${percent((denied / asked) * 10_000)} of all` : ''} />
    <${Figure} name="leader" value=${leader.region ?? (leader.epoch ? `epoch ${leader.epoch}` : NOT_KNOWN)} level=${leader.late ? 'bad' : ''}
      note=${`last beat ${duration(leader.beat_age_ms)} ago`} />
  </dl>`;
}

const Figure = ({ name, value, note, level = '' }) => html`<div class="figure"><dt>${name}</dt>
  <dd class=${level}>${value}</dd>${note && html`<dd class="note">${note}</dd>`}</div>`;

function RegionCard({ region, index, feed }) {
  const trail = feed.trails.get(region.name);
  return html`<li class=${`card region ${region.link}`} style=${`--own: var(--region-${(index % 6) + 1})`}>
    <h3><span class="swatch" aria-hidden="true"></span><a href=${hrefOf('region', { name: region.name })}>${region.name}</a>
      <${Link} region=${region} /></h3>
    <div class="region-rates">
      <div><span class="quiet">allowed</span> <b>${rate(region.allowed_per_s)}</b><${Spark} values=${trail?.allowed ?? []} kind="allowed" /></div>
      <div><span class="quiet">denied</span> <b>${rate(region.denied_per_s)}</b><${Spark} values=${trail?.denied ?? []} kind="denied" /></div>
    </div>
    <dl>
      <${Count} name="Redis" part=${region.points.ok} whole=${region.points.total} />
      <${Count} name="nodes" part=${region.nodes.ready} whole=${region.nodes.total} />
      <${Left} name="session" ms=${region.session_left_ms} wholeMs=${region.session_whole_ms} />
      <${Left} name="consent" ms=${region.consent_left_ms} wholeMs=${region.consent_whole_ms} />
      ${region.without_redis_per_s > 0 && html`<div class="wide"><dt>decided without Redis</dt>
        <dd class="bad">${rate(region.without_redis_per_s)}</dd></div>`}
      ${region.at_floor_per_s > 0 && html`<div class="wide"><dt>decided at the floor</dt>
        <dd>${rate(region.at_floor_per_s)}</dd></div>`}
    </dl>
  </li>`;
}

const isShort = (part, whole) => known(part) && known(whole) && part < whole;

function Count({ name, part, whole }) {
  return html`<div><dt>${name}</dt><dd class=${isShort(part, whole) ? 'bad' : ''}>${known(part) ? part : NOT_KNOWN} of
    ${' '}${known(whole) ? whole : NOT_KNOWN}</dd></div>`;
}

function Left({ name, ms, wholeMs }) {
  const part = known(ms) ? Math.min(1, Math.max(0, ms / wholeMs)) : 0;
  return html`<div class="left"><dt>${name} left</dt><dd>${known(ms) && ms <= 0 ? 'ended' : duration(ms)}</dd>
    <span class="bar" aria-hidden="true"><span style=${`width: ${part * 100}%`}></span></span></div>`;
}

function RegionRows({ regions }) {
  const rows = byTrouble(regions);
  return html`<div class="card scroll rows" tabindex="0" role="region" aria-label="Regions"><table><thead><tr><th scope="col">region</th><th scope="col" class="text">link</th>
      <th scope="col">allowed</th><th scope="col">denied</th><th scope="col">Redis</th><th scope="col">nodes</th><th scope="col">session left</th></tr></thead>
    <tbody>${rows.map(({ region, index }) => html`<tr key=${region.name}>
      <th scope="row"><a href=${hrefOf('region', { name: region.name })}><${RegionName} name=${region.name} index=${index} /></a></th>
      <td class="text"><${Link} region=${region} /></td><td>${rate(region.allowed_per_s)}</td><td>${rate(region.denied_per_s)}</td>
      <td class=${isShort(region.points.ok, region.points.total) ? 'bad' : ''}>${region.points.ok ?? NOT_KNOWN} of ${region.points.total}</td>
      <td class=${isShort(region.nodes.ready, region.nodes.total) ? 'bad' : ''}>${region.nodes.ready ?? NOT_KNOWN} of ${region.nodes.total ?? NOT_KNOWN}</td>
      <td>${duration(region.session_left_ms)}</td></tr>`)}</tbody></table></div>`;
}

function Quotas({ feed }) {
  const [text, setText] = useState('');
  const [all, setAll] = useState(false);
  const every = quotasByNearness(feed.rules, feed.points);
  const found = every.filter(({ rule }) => rule.name.includes(text.trim().toLowerCase()));
  const shown = found.slice(0, all ? QUOTAS_MOST : QUOTAS_AT_FIRST);
  return html`<${Card} title="Global limits, the nearest to their limit first" kind="quotas"
      aside=${every.length > QUOTAS_AT_FIRST && html`<${Search} label="Find a limit" value=${text} onInput=${setText} />`}>
    ${every.length === 0 && html`<${NoGlobals} />`}
    ${every.length > 0 && shown.length === 0 && html`<p class="empty">No global limit is called so.</p>`}
    ${shown.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Global limits"><table class="quota-table"><thead><tr>
      <th scope="col">limit</th><th scope="col" class="text">its busiest key asks for</th><th scope="col">allowed</th><th scope="col">denied</th></tr></thead>
      <tbody>${shown.map((row, place) => html`<${QuotaRow} key=${place} row=${row} />`)}</tbody></table></div>`}
    ${found.length > shown.length && !all && html`<button type="button" class="more" onClick=${() => setAll(true)}>
      Show ${Math.min(found.length, QUOTAS_MOST)} of ${number(found.length)}</button>`}
  <//>`;
}

function QuotaRow({ row: { rule, near, key, allowed, denied } }) {
  const used = known(near) ? percent(near * 10_000) : 'unused';
  return html`<tr><th scope="row"><a href=${hrefOf('quota', { rule: rule.name })}>${rule.id}</a>
      ${rule.domain !== 'default' && html` <small>in ${rule.domain}</small>`}<span class="under">${rule.limit}</span></th>
    <td class="text"><${Meter} part=${near} level=${levelOf(near)} label=${used} />${key !== null && known(near) && html`<span class="under">${keyName(key)}</span>`}</td>
    <td data-name="allowed">${rate(allowed)}</td><td data-name="denied" class=${denied > 0 ? 'strong' : ''}>${rate(denied)}</td></tr>`;
}

const NoGlobals = () => html`<div class="empty"><p>No rule of global scope is in force yet. For example:</p>
  <pre>curl -X PUT localhost:CONTROL_PORT/rules/orders-free -H 'content-type: application/json' \\
  -d '{"match": {"resource": "POST /orders"}, "capacity": 20, "refill_per_second": 10, "scope": "global"}'</pre></div>`;
