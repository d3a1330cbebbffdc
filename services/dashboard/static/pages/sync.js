// How shares move: the leader, its records and how fast they are obeyed, what regions have left, and a timeline that can
// be moved back to any moment that the log told of.

import { html, useEffect, useMemo, useState } from '../view.js';
import { Chart, axisOf, colour } from '../charts.js';
import { byTrouble, Card, Facts, Link, RegionName, Still } from '../components.js';
import { clock, duration, keyName, known, number, percent, NOT_KNOWN } from '../format.js';
import { hrefOf } from '../router.js';
import { pathOf, usePast } from '../past.js';

const EVERY_MS = 1000;
const BACK_MS = 900_000;
const STEP_MS = 1000;
const COLUMNS_MOST = 9; // of more regions a row tells of those that are furthest from their base
const KEYS_SHOWN = 50;
const KEYS_OF_MANY = 20; // keys by regions are what an answer is made of
const RANGES = [[900_000, '15 min'], [3_600_000, '1 h'], [21_600_000, '6 h'], [86_400_000, '24 h'], [604_800_000, '7 days']];

export default function Sync({ feed, route }) {
  const sync = usePast(() => 'v1/sync', 'sync', EVERY_MS);
  if (!feed.status || !sync.data) {
    return html`<h1>Sync</h1><p class="empty" role="status">${sync.problem ? `Not read: ${sync.problem}` : 'Waiting for the first data…'}</p>`;
  }
  const { leader, regions } = feed.status;
  const told = sync.data;
  // Of many regions, rows are drawn when the answer to this page's own question is there, and at once when a link changes.
  const drawn = regions.length > COLUMNS_MOST ? regions.map((region) => region.link).join() : feed.status;
  return html`<h1>Sync</h1>
    ${sync.problem && html`<p class="sentence warn" role="status"><b aria-hidden="true">!</b> <span>Not read anew: ${sync.problem}</span></p>`}
    <${Leading} leader=${leader} told=${told} />
    <div class="columns">
      <${Still} by=${[told, drawn]} draw=${() => html`<${Regions} status=${feed.status} told=${told} />`} />
      <${Still} by=${[told, feed.regions]} draw=${() => html`<${Records} told=${told} regions=${feed.regions} />`} />
    </div>
    <${Timeline} route=${route} regions=${feed.regions} since=${told.history.shares_since_ms} />
    <${Still} by=${[told]} draw=${() => html`<${Kept} history=${told.history} behind=${told.behind_here} />`} />`;
}

const Figure = ({ name, value, note, level = '' }) => html`<div class="figure"><dt>${name}</dt><dd class=${level}>${value}</dd><dd class="note">${note}</dd></div>`;

function Leading({ leader, told }) {
  const { leases, log } = told;
  const refused = Object.values(told.refused).flatMap((one) => [one.agent, one.leader]).filter(known);
  const many = refused.reduce((all, one) => all + one, 0);
  return html`<dl class="figures">
    <${Figure} name="leader" value=${leader.region ?? `epoch ${leader.epoch ?? NOT_KNOWN}`} note=${leader.region ? `epoch ${leader.epoch ?? NOT_KNOWN}` : 'its region is not known here'} />
    <${Figure} name="last beat" value=${`${duration(leader.beat_age_ms)} ago`} level=${leader.late ? 'bad' : ''} note=${leader.late ? 'late' : 'three a second'} />
    <${Figure} name="GROW and KEEP" value=${`${rateOf(leases.grows_per_s)} / ${rateOf(leases.keeps_per_s)}`} note="records per second" />
    <${Figure} name="settled after" value=${duration(leases.settled_ms_p50)} note=${leases.settled > 0 ? `95 %: ${duration(leases.settled_ms_p95)}, longest ${duration(leases.settled_ms_max)}` : 'nothing moved in the last minute'} />
    <${Figure} name="not settled yet" value=${number(leases.waiting)} note=${leases.waiting > 0 ? `the oldest for ${duration(leases.waiting_ms_max)}` : 'every region has obeyed'} level=${leases.waiting_ms_max > 3000 ? 'warn' : ''} />
    <${Figure} name="refused" value=${refused.length > 0 ? number(many) : NOT_KNOWN} note="records and claims, by an invariant" level=${many > 0 ? 'bad' : ''} />
    <${Figure} name="keys away from base" value=${number(log.keys_moved)} note=${`log at ${number(log.next_offset)}, read ${duration(leader.lag_ms)} late`} />
  </dl>`;
}

const rateOf = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(1));

function Regions({ status, told }) {
  const many = status.regions.length > COLUMNS_MOST;
  const rows = many ? byTrouble(status.regions) : status.regions.map((region, index) => ({ region, index }));
  return html`<${Card} title="Sessions and consents"><div class=${many ? 'scroll tall' : 'scroll'} tabindex="0"><table><thead><tr><th scope="col">region</th><th scope="col">link</th>
    <th scope="col">session left</th><th scope="col">consent left</th><th scope="col">log read</th><th scope="col">to be read</th><th scope="col">heard</th><th scope="col">refused</th></tr></thead><tbody>${rows.map(({ region, index }) => {
      const refused = told.refused[region.name] ?? {};
      const counts = [refused.agent, refused.leader].filter(known);
      return html`<tr key=${region.name}><th scope="row"><a href=${hrefOf('region', { name: region.name })}><${RegionName} name=${region.name} index=${index} /></a></th>
        <td><${Link} region=${region} /></td><td><${Left} ms=${region.session_left_ms} wholeMs=${region.session_whole_ms} index=${index} /></td>
        <td><${Left} ms=${region.consent_left_ms} wholeMs=${region.consent_whole_ms} index=${index} /></td>
        <td class=${told.log_age_ms[region.name] > 3000 ? 'bad' : ''}>${duration(told.log_age_ms[region.name])} ago</td><td><${Behind} told=${told.behind[region.name]} /></td><td>${duration(region.link_age_ms)} ago</td><td class=${counts.some(Boolean) ? 'bad' : ''}>${counts.length > 0 ? number(counts.reduce((a, b) => a + b, 0)) : NOT_KNOWN}</td></tr>`;
    })}</tbody></table></div>
    <p class="quiet">A session is what leases count by; a consent is the promise to stay below base. When both have ended, a region is at its base, whatever the others say.</p><//>`;
}

const BEHIND_MANY = 1000; // the alert ConsumerLag begins there

// Of Kafka's topics, the one of which most is still to be read.
function Behind({ told }) {
  const [topic, count] = Object.entries(told ?? {}).sort((one, other) => other[1] - one[1])[0] ?? [null, null];
  return html`<span class=${count > BEHIND_MANY ? 'bad' : ''}>${number(count)}</span>${count > 0 && html`<span class="under">of ${topic}</span>`}`;
}

function Left({ ms, wholeMs, index }) {
  const part = known(ms) ? Math.min(1, Math.max(0, ms / wholeMs)) : 0;
  return html`<span>${known(ms) && ms <= 0 ? 'ended' : duration(ms)}</span><span class="bar" aria-hidden="true"><span style=${`width: ${part * 100}%; --own: var(--region-${(index % 6) + 1})`}></span></span>`;
}

// GROW and KEEP over the last quarter of an hour.
function Records({ told, regions }) {
  const series = usePast(() => pathOf('series', { from: Date.now() - BACK_MS, step: 5000 }), 'records', 5000);
  const [bounds] = useState({});
  const columns = useMemo(() => {
    if (!series.data) return null;
    const names = Object.keys(series.data.regions);
    const of = (name) => series.data.at_ms.map((_, at) => names.reduce((all, region) => all + series.data.regions[region][name][at], 0) / (series.data.step_ms / 1000));
    return [series.data.at_ms.map((at) => at / 1000), of('grows'), of('keeps')];
  }, [series.data]);
  if (columns) [bounds.from, bounds.to] = [series.data.to_ms / 1000 - BACK_MS / 1000, series.data.to_ms / 1000];
  return html`<${Card} title="Records of the log" aside=${html`<span class="quiet">per second, 15 min</span>`}>
    ${columns === null ? html`<p class="empty">${series.problem ?? 'Reading…'}</p>` : html`
      <${Chart} name=${`records ${regions.join()}`} height=${150} options=${(width) => recordOptions(width, bounds)} data=${columns} syncName="sync" onCursor=${() => {}}
        label=${`Records per second: GROW ${rateOf(told.leases.grows_per_s)}, KEEP ${rateOf(told.leases.keeps_per_s)}`} />
      <p class="quiet"><span class="legend"><span class="line allowed" aria-hidden="true"></span>GROW: somebody was given more</span>${' '}<span class="legend"><span class="line denied" aria-hidden="true"></span>KEEP: somebody was taken back</span></p>`}<//>`;
}

function recordOptions(width, bounds) {
  const line = (label, name, extra) => ({ label, stroke: colour(name), width: 2, points: { show: false }, ...extra });
  return {
    width, height: 150, legend: { show: false }, padding: [8, 16, 0, 0],
    cursor: { drag: { x: false, y: false }, points: { size: 6 }, y: false },
    scales: { x: { time: true, range: () => [bounds.from, bounds.to] }, y: { range: (_plot, _min, max) => [0, Math.max(1, (max ?? 0) * 1.1)] } },
    axes: [axisOf({ values: (_plot, splits) => splits.map((at) => clock(at * 1000)), space: 80, size: 26 }), axisOf({ size: 40, space: 30 })],
    series: [{}, line('GROW', '--allowed'), line('KEEP', '--denied', { dash: [6, 3] })],
  };
}

// ---- the timeline

const KINDS = { grow: 'GROW', keep: 'KEEP', welcome: 'WELCOME', renewed: 'renewed', over: 'session over', snapshot: 'SNAPSHOT', window: 'WINDOW', gone: 'GONE', leader: 'MARK' };

function Timeline({ route, regions, since }) {
  const { query, set } = route;
  const rangeMs = Number(query.back) || RANGES[0][0];
  const atMs = /^\d{1,15}$/.test(query.at ?? '') ? Number(query.at) : null;
  const [nowMs, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  const endMs = atMs === null ? nowMs : Math.max(nowMs, atMs);
  const beginMs = Math.max(endMs - rangeMs, since ?? 0);
  const shownMs = atMs ?? nowMs;
  const go = (ms) => set({ at: ms === null || ms >= Date.now() - STEP_MS ? null : String(Math.round(ms)) });
  const key = query.key || null;
  const held = usePast(() => pathOf('shares/at', { time: atMs ?? Date.now(), key, limit: regions.length > COLUMNS_MOST ? KEYS_OF_MANY : KEYS_SHOWN }), `at ${atMs} ${key}`, atMs === null ? EVERY_MS : 0);
  const records = usePast(() => pathOf('shares/records', { key, from: Math.max(0, (atMs ?? Date.now()) - rangeMs), to: atMs === null ? null : atMs + 1, limit: 30 }), `records ${atMs} ${key} ${rangeMs}`, atMs === null ? EVERY_MS : 0);
  const moves = useMemo(() => [...new Set((records.data?.steps ?? []).map((step) => step.at_ms))], [records.data]);
  const before = moves.find((ms) => ms < shownMs) ?? null;
  const onKey = (event) => {
    const by = { PageUp: -60_000, PageDown: 60_000 }[event.key];
    if (!by) return;
    event.preventDefault();
    go(shownMs + by);
  };
  const aside = html`<label class="pick-range"><span class="hidden">how far back</span><select value=${rangeMs} onChange=${(event) => set({ back: event.target.value })}>
    ${RANGES.map(([ms, name]) => html`<option key=${ms} value=${ms}>${name} back</option>`)}</select></label>`;
  return html`<${Card} title="Who held what" id="timeline" aside=${aside}>
    <div class="timeline">
      <input type="range" aria-label="moment" aria-valuetext=${clock(shownMs)} min=${beginMs} max=${endMs} step=${STEP_MS} value=${Math.max(beginMs, shownMs)} onInput=${(event) => go(Number(event.target.value))} onKeyDown=${onKey} />
      <div class="actions">
        <button type="button" onClick=${() => go(before)} disabled=${before === null}>◀ last move</button>
        <button type="button" onClick=${() => go(shownMs - STEP_MS)}>− 1 s</button>
        <output class="moment"><b>${stamp(shownMs)}</b>${atMs === null ? ' · live' : ` · ${duration(nowMs - atMs)} ago`}</output>
        <button type="button" onClick=${() => go(shownMs + STEP_MS)} disabled=${atMs === null}>+ 1 s</button>
        <button type="button" onClick=${() => go(null)} disabled=${atMs === null}>live</button>
        ${key && html`<span class="quiet link-line">only ${keyName(key)} <a href=${hrefOf('sync', { ...query, key: null })}>all keys</a></span>`}
      </div>
    </div>
    ${(held.problem ?? records.problem) && html`<p class="sentence warn"><b aria-hidden="true">!</b> <span>${held.problem ?? records.problem}</span></p>`}
    ${held.data && !held.data.known && html`<p class="empty">Nothing is known of that moment: shares are recorded since ${since ? stamp(since) : 'a moment to come'}.</p>`}
    ${held.data?.known && html`<${Still} by=${[held.data, regions, key, query.at, query.back]} draw=${() => html`<${HeldTable} held=${held.data} regions=${regions} query=${query} />`} />`}
    ${records.data && html`<${Still} by=${[records.data, regions, atMs]} draw=${() => html`<${RecordTable} steps=${records.data.steps} regions=${regions} go=${go} atMs=${atMs} />`} />`}<//>`;
}

const stamp = (ms) => {
  const date = new Date(ms);
  const day = date.toDateString() === new Date().toDateString() ? '' : `${date.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' })} `;
  return `${day}${clock(ms)}.${String(Math.floor(ms % 1000)).padStart(3, '0')}`;
};

const SESSIONS = { over: 'session over', gone: 'destroyed', unknown: 'not known' };

function HeldTable({ held, regions, query }) {
  const rows = held.keys;
  if (regions.length > COLUMNS_MOST) {
    return query.key ? html`<${HeldByRegion} rows=${rows} regions=${regions} />` : html`<${HeldApart} rows=${rows} regions=${regions} query=${query} epoch=${held.epoch} />`;
  }
  return html`<div class="scroll" tabindex="0"><table class="held"><thead><tr><th scope="col">key</th>${regions.map((region, index) => html`<th scope="col" key=${region}><${RegionName} name=${region} index=${index} /></th>`)}<th scope="col">together</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key}><th scope="row"><a href=${hrefOf('sync', { ...query, key: row.key })}>${keyName(row.key)}</a><span class="under">${ruleName(row.key)}</span></th>
      ${regions.map((region) => html`<td key=${region}><${Share} one=${row.regions[region]} inWindows=${row.in_windows} /></td>`)}
      <td class=${row.together > 10_000 ? 'bad strong' : 'strong'}>${percent(row.together)}</td></tr>`)}</tbody></table></div>
    ${rows.length === 0 && html`<${AllAtBase} epoch=${held.epoch} />`}`;
}

const AllAtBase = ({ epoch }) => html`<p class="empty">Every key was at its base then${epoch ? ` (epoch ${epoch})` : ''}.</p>`;

const APART_SHOWN = 5;
const apart = (one) => Math.abs(one.units - one.base);

// Of many regions: by key those that are furthest from their base.
function HeldApart({ rows, regions, query, epoch }) {
  return html`<div class="scroll" tabindex="0"><table class="held"><thead><tr><th scope="col">key</th><th scope="col" class="text">furthest from their base</th><th scope="col">away from base</th><th scope="col">together</th></tr></thead>
    <tbody>${rows.map((row) => {
      const away = regions.filter((region) => row.regions[region] && apart(row.regions[region]) > 0).sort((a, b) => apart(row.regions[b]) - apart(row.regions[a]));
      return html`<tr key=${row.key}><th scope="row"><a href=${hrefOf('sync', { ...query, key: row.key })}>${keyName(row.key)}</a><span class="under">${ruleName(row.key)}</span></th>
        <td class="text">${away.slice(0, APART_SHOWN).map((region) => `${region} ${percent(row.regions[region].units)}`).join(', ') || 'none'}</td>
        <td>${number(away.length)} of ${number(regions.length)}</td><td class=${row.together > 10_000 ? 'bad strong' : 'strong'}>${percent(row.together)}</td></tr>`;
    })}</tbody></table></div>
    ${rows.length === 0 && html`<${AllAtBase} epoch=${epoch} />`}`;
}

// One key in many regions.
function HeldByRegion({ rows, regions }) {
  return rows.map((row) => html`<div class="scroll tall" tabindex="0" key=${row.key}><table class="held"><thead><tr><th scope="col">region</th><th scope="col">share</th></tr></thead>
    <tbody>${regions.map((region, index) => html`<tr key=${region}><th scope="row"><${RegionName} name=${region} index=${index} /></th><td><${Share} one=${row.regions[region]} inWindows=${row.in_windows} /></td></tr>`)}</tbody>
    <tfoot><tr><th scope="row">together</th><td class=${row.together > 10_000 ? 'bad strong' : 'strong'}>${percent(row.together)}</td></tr></tfoot></table></div>`);
}

function Share({ one, inWindows }) {
  if (!one) return NOT_KNOWN;
  const word = inWindows ? (one.borrowed > 0 ? `+ ${percent(one.borrowed)} of this window` : 'its own part')
    : SESSIONS[one.session] ?? (one.is_base ? 'base' : one.borrowed > 0 ? `+ ${percent(one.borrowed)} on loan` : one.lent > 0 ? `− ${percent(one.lent)} lent` : 'its base');
  return html`<b>${percent(one.units)}</b><span class=${`under ${one.session === 'over' ? 'warn' : ''}`}>${word}</span>`;
}

const ruleName = (key) => key.replace(/^rl:\{[^}]*\}:/, '').split(':')[0];

function RecordTable({ steps, regions, go, atMs }) {
  if (steps.length === 0) return html`<p class="empty">No record moved a share in this time.</p>`;
  return html`<h3 class="under-head">Records up to then</h3><div class="scroll records" tabindex="0"><table><thead><tr><th scope="col">when</th><th scope="col" class="text">record</th><th scope="col" class="text">region</th><th scope="col" class="text">key</th><th scope="col">to</th><th scope="col">epoch · n</th></tr></thead>
    <tbody>${steps.map((step) => html`<tr key=${`${step.offset} ${step.n} ${step.region} ${step.key} ${step.kind}`} class=${step.at_ms === atMs ? 'picked' : ''}>
      <td><button type="button" class="plain moment-button" onClick=${() => go(step.at_ms)} title="to this moment">${stamp(step.at_ms)}</button></td>
      <td class="text"><b>${KINDS[step.kind] ?? step.kind}</b></td><td class="text">${step.region ? html`<${RegionName} name=${step.region} index=${regions.indexOf(step.region)} />` : ''}</td>
      <td class="text">${step.key === '' ? html`<span class="quiet">all keys</span>` : html`${keyName(step.key)} <span class="quiet">${ruleName(step.key)}</span>`}</td>
      <td class="strong">${step.key === '' ? '' : step.units === null ? 'base' : percent(step.units)}</td><td class="quiet">${step.epoch} · ${step.n || NOT_KNOWN}</td></tr>`)}</tbody></table></div>`;
}

function Kept({ history, behind }) {
  const rows = [
    ['kept in', history.kept_in === 'file' ? 'a file of this dashboard' : `memory: ${history.why_in_memory}`, history.kept_in === 'file' ? '' : 'warn'],
    ['size', `${number(history.bytes / 1e6)} MB`],
    ['still to be read of Kafka', html`<${Behind} told=${behind} />`],
    ['seconds since', history.seconds_since_ms ? stamp(history.seconds_since_ms) : NOT_KNOWN],
    ['minutes since', history.minutes_since_ms ? stamp(history.minutes_since_ms) : NOT_KNOWN],
    ['shares since', history.shares_since_ms ? stamp(history.shares_since_ms) : NOT_KNOWN],
    history.catching_up && ['usage', 'still being read', 'warn'],
    history.problem && ['not written', history.problem, 'bad'],
    history.left_out > 0 && ['left out', number(history.left_out), 'warn'],
  ];
  return html`<${Card} title="What is remembered"><${Facts} rows=${rows} kind="kept" /><//>`;
}
