// One limit over time: what was asked, allowed and denied, who held how much of it, and which keys were busiest. The
// address says all of it: rule, key, range, and where it ends unless it goes on.

import { html, useEffect, useMemo, useRef, useState } from '../view.js';
import { Chart } from '../charts.js';
import { Card, RegionName, regionColour, Segments } from '../components.js';
import { clock, isHashed, keyName, known, number, percent, rate, NOT_KNOWN } from '../format.js';
import { hrefOf } from '../router.js';
import { pathOf, usePast } from '../past.js';
import {
  colourIn, deniedData, deniedOptions, groupsOf, meanColumns, newestPlace, placeAt, rateColumns, rateData, rateOptions, shareData, shareOptions, stepColumns, thinned,
} from '../past_charts.js';

const RANGES = [['5m', '5 min', 300], ['15m', '15 min', 900], ['1h', '1 h', 3600], ['6h', '6 h', 21_600], ['24h', '24 h', 86_400], ['7d', '7 days', 604_800]];
const TOGETHER = '*';
const KEYS_EVERY_MS = 5000;
const STEPS_LISTED = 12;
const MOST_LISTED = 300;

export default function Quota({ feed, route }) {
  const { query } = route;
  const rules = useMemo(() => [...feed.rules].sort((a, b) => (a.scope === b.scope ? 0 : a.scope === 'global' ? -1 : 1)), [feed.rules]);
  if (!feed.status) return html`<h1>Quota</h1><p class="empty" role="status">Waiting for the first data…</p>`;
  const rule = rules.find((one) => one.name === query.rule) ?? (query.rule ? null : rules[0]);
  if (feed.rules.length === 0) return html`<h1>Quota</h1><${NoRules} />`;
  if (!rule) {
    return html`<h1>Quota</h1><p class="empty">There is no rule <code>${query.rule}</code> now.
      ${' '}<a href=${hrefOf('quota')}>The first one</a></p>`;
  }
  return html`<${OfRule} key=${rule.name} rule=${rule} rules=${rules} feed=${feed} route=${route} />`;
}

function NoRules() {
  return html`<div class="card empty"><p>No rule is in force yet. For example:</p>
    <pre>curl -X PUT localhost:CONTROL_PORT/rules/orders-free -H 'content-type: application/json' \\
  -d '{"match": {"resource": "POST /orders"}, "capacity": 20, "refill_per_second": 10, "scope": "global"}'</pre></div>`;
}

function useSpan(query) {
  const found = RANGES.find(([name]) => name === query.range) ?? RANGES[1];
  const toMs = /^\d{1,15}$/.test(query.to ?? '') ? Number(query.to) : null;
  return { range: found[0], ms: found[2] * 1000, toMs };
}

// The groups of a view are those that it began with: colours do not take turns.
function useGroups(view, regions, totals) {
  const kept = useRef({});
  const name = `${view} ${regions.join()}`;
  if (kept.current.name !== name) kept.current = { name, groups: groupsOf(regions, totals ?? {}), isSettled: false };
  if (totals && !kept.current.isSettled) kept.current = { name, groups: groupsOf(regions, totals), isSettled: true };
  return kept.current.groups;
}

// The same nodes as long as the rules are the same: of a thousand none is looked at anew.
const useRuleOptions = (rules) => useMemo(() => rules.map((one) => html`<option key=${one.name} value=${one.name}>${one.domain === 'default' ? one.id : one.name}${one.scope === 'region' ? ' (in each region)' : ''}</option>`), [rules]);

function OfRule({ rule, rules, feed, route }) {
  const { query, set } = route;
  const span = useSpan(query);
  const [domain, id] = [rule.domain, rule.id];
  const isGlobal = rule.scope === 'global';
  const endMs = () => span.toMs ?? Date.now();
  const live = span.toMs === null;
  const everyMs = live ? Math.min(10_000, Math.max(2000, span.ms / 300)) : 0;
  const bounds = () => ({ from: endMs() - span.ms, to: span.toMs });
  const view = `${rule.name} ${span.range} ${span.toMs}`;
  const busiest = usePast(() => (isGlobal ? pathOf('keys', { domain, rule: id, ...bounds(), limit: 20 }) : null), view, live ? KEYS_EVERY_MS : 0);
  const rows = busiest.data?.keys ?? [];
  const first = rows[0]?.key ?? feed.points[rule.name]?.keys?.[0]?.[0] ?? null;
  const key = query.key === TOGETHER || !isGlobal ? null : query.key || first;
  const series = usePast(() => pathOf('series', { domain, rule: id, key, ...bounds() }), `${view} ${key}`, everyMs);
  const steps = usePast(() => (key && isGlobal ? pathOf('shares/steps', { key, ...bounds() }) : null), `${view} ${key} steps`, everyMs);
  const [cursor, setCursor] = useState(null);
  useEffect(() => setCursor(null), [view, key]);
  const problem = series.problem ?? steps.problem ?? busiest.problem;
  const limit = key !== null || !isGlobal ? rule.rate_per_s ?? rule.even_per_s ?? null : null;
  const groups = useGroups(`${view} ${key}`, feed.regions, series.data?.totals);
  const ruleOptions = useRuleOptions(rules);
  const pick = (changes) => set(changes, { push: true });
  return html`
    <div class="page-head"><h1>Quota</h1><div class="actions">
      <${Segments} label="time shown" options=${RANGES.map(([value, name]) => [value, name])} value=${span.range} onPick=${(range) => pick({ range })} />
      <${Ends} span=${span} set=${set} /></div></div>
    <div class="fields">
      <label class="field"><span>Rule</span><select value=${rule.name} onChange=${(event) => pick({ rule: event.target.value, key: null })}>
        ${ruleOptions}
      </select></label>
      ${isGlobal && html`<label class="field"><span>Key</span><select value=${query.key ?? ''} onChange=${(event) => pick({ key: event.target.value || null })}>
        <option value="">busiest: ${first ? keyName(first) : NOT_KNOWN}</option>
        <option value=${TOGETHER}>all keys together</option>
        ${[...new Set([...rows.map((row) => row.key), ...(key ? [key] : [])])].map((one) => html`<option key=${one} value=${one}>${keyName(one)}</option>`)}
      </select></label>`}
    </div>
    <p class="limit">${rule.limit}${isGlobal && rule.distribution === 'static' && ' · split by the bases alone'}
      ${rule.description && html`<span class="quiet"> · ${rule.description}</span>`}</p>
    ${problem && html`<p class="sentence warn" role="status"><b aria-hidden="true">!</b> <span>Not read anew: ${problem}</span></p>`}
    <${Numbers} rule=${rule} series=${series.data} steps=${steps.data} limit=${limit} groups=${groups} keyShown=${key} />
    ${series.data === null && !problem && html`<p class="empty" role="status">Reading…</p>`}
    ${series.data && html`<${Rates} series=${series.data} groups=${groups} limit=${limit} span=${span} cursor=${cursor} setCursor=${setCursor} rule=${rule} keyShown=${key} />`}
    ${isGlobal && series.data && html`<${Shares} series=${series.data} steps=${steps.data} groups=${groups} span=${span} cursor=${cursor}
      setCursor=${setCursor} rule=${rule} bases=${feed.bases[rule.domain] ?? {}} keyShown=${key} />`}
    <div class="columns even">
      ${isGlobal && html`<${Keys} rows=${rows} shown=${key} pick=${pick} span=${span} />`}
      ${isGlobal && key && steps.data && html`<${Steps} told=${steps.data} groups=${groups} />`}
    </div>`;
}

// Live, or ending at a moment that the address names.
function Ends({ span, set }) {
  const half = span.ms / 2;
  const to = (toMs) => set({ to: toMs === null || toMs >= Date.now() - 1000 ? null : String(Math.round(toMs / 1000) * 1000) });
  const endMs = span.toMs ?? Date.now();
  return html`<div class="segments" role="group" aria-label="where it ends">
    <button type="button" onClick=${() => to(endMs - half)} title="earlier" aria-label="earlier">◀</button>
    <button type="button" aria-pressed=${span.toMs === null} onClick=${() => to(null)}>live</button>
    <button type="button" aria-pressed=${span.toMs !== null} onClick=${() => to(span.toMs ?? Date.now() - 2000)} title="Stand still: the address then reproduces this view">${span.toMs === null ? 'hold' : `until ${moment(span.toMs)}`}</button>
    <button type="button" onClick=${() => to(endMs + half)} disabled=${span.toMs === null} title="later" aria-label="later">▶</button></div>`;
}

function moment(ms) {
  const date = new Date(ms);
  const today = date.toDateString() === new Date().toDateString();
  return today ? clock(ms) : `${date.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' })} ${clock(ms)}`;
}

const sum = (values) => (values.some(known) ? values.filter(known).reduce((a, b) => a + b, 0) : null);

const totalOf = (series, regions, name) => regions.reduce((all, region) => all + (series.totals[region]?.[name] ?? 0), 0);

function Numbers({ rule, series, steps, limit, groups, keyShown }) {
  const columns = useMemo(() => (series ? rateColumns(series, groups) : null), [series, groups]);
  const at = columns && newestPlace(columns.t, columns.allowed);
  const allowed = columns && sum(columns.allowed.map((column) => column[at]));
  const denied = columns && sum(columns.denied.map((column) => column[at]));
  const offered = known(allowed) ? allowed + (denied ?? 0) : null;
  const held = useMemo(() => (steps ? stepColumns(steps, groups) : null), [steps, groups]);
  const together = held ? sum([...held.own, ...held.loan].map((column) => column.at(-1))) : null;
  const headroom = known(limit) && known(allowed) ? Math.max(0, limit - allowed) : null;
  const all = (name) => (series ? totalOf(series, groups.flatMap((group) => group.regions), name) : null);
  return html`<dl class="figures quota-figures">
    <${Figure} name="limit" value=${known(limit) ? rate(limit) : NOT_KNOWN} note=${keyShown === null && rule.scope === 'global' ? 'each key has its own' : 'in the long run'} />
    <${Figure} name="offered" value=${rate(offered)} note=${`${number(all('allowed') === null ? null : all('allowed') + all('denied'))} in this time`} />
    <${Figure} name="allowed" value=${rate(allowed)} note=${`${number(all('allowed'))} in this time`} />
    <${Figure} name="denied" value=${rate(denied)} note=${`${number(all('denied'))} in this time`} />
    <${Figure} name="headroom" value=${rate(headroom)} note=${known(headroom) && limit > 0 ? `${percent((headroom / limit) * 10_000)} of the limit` : 'below the limit'} />
    ${rule.scope === 'global' && html`<${Figure} name="shares together" value=${known(together) ? `${together.toFixed(1)} %` : NOT_KNOWN} note="by the records; a region may have given back more" />`}
  </dl>`;
}

const Figure = ({ name, value, note }) => html`<div class="figure"><dt>${name}</dt><dd>${value}</dd><dd class="note">${note}</dd></div>`;

// Bounds of a chart, in one object that it reads at every drawing.
function useBounds(span, fromMs, toMs) {
  const [bounds] = useState({});
  bounds.s = span.ms / 1000;
  bounds.to = toMs / 1000;
  bounds.from = fromMs / 1000;
  return bounds;
}

const namesOf = (groups) => groups.map((group) => group.name).join();

const onCursorOf = (columns, setCursor) => (place) => setCursor(place === null || columns.current === null ? null : columns.current.t[place] ?? null);

function Rates({ series, groups, limit, span, cursor, setCursor, rule, keyShown }) {
  const columns = useMemo(() => rateColumns(series, groups), [series, groups]);
  const bounds = useBounds(span, series.to_ms - span.ms, series.to_ms);
  const data = useMemo(() => rateData(columns, limit), [columns, limit]);
  const denied = useMemo(() => deniedData(columns), [columns]);
  const [held] = useState({ current: null });
  held.current = columns;
  const onCursor = onCursorOf(held, setCursor);
  const at = cursor === null ? columns.t.length - 1 : placeAt(columns.t, cursor) ?? 0;
  const name = `${rule.name} ${keyShown} ${span.range} ${namesOf(groups)} ${limit}`;
  const when = cursor === null ? 'last' : clock(columns.t[at] * 1000);
  const allowed = sum(columns.allowed.map((column) => column[at]));
  const refused = sum(columns.denied.map((column) => column[at]));
  const label = `${rule.id}: allowed ${rate(allowed)}, denied ${rate(refused)}${known(limit) ? `, limit ${rate(limit)}` : ''}`;
  return html`<section class="card rule" aria-label="Rates"><div class="pair wide-left">
    <figure><figcaption>Allowed by region, cost per second; dotted: offered${known(limit) ? '; line: the limit' : ''}</figcaption>
      <${Chart} name=${`r ${name}`} height=${230} options=${(width) => rateOptions(width, 230, groups, limit, bounds)} data=${data} syncName="quota" onCursor=${onCursor} label=${label} />
      <p class="hidden">Denied, by region:</p><figcaption>Denied by region, cost per second</figcaption>
      <${Chart} name=${`d ${name}`} height=${110} options=${(width) => deniedOptions(width, 110, groups, bounds)} data=${denied} syncName="quota" onCursor=${onCursor} label=${`Denied ${rate(refused)}`} />
    </figure>
    <div class="scroll" tabindex="0"><table><thead><tr><th scope="col">${when}</th><th scope="col">allowed</th><th scope="col">denied</th><th scope="col">in this time</th></tr></thead>
      <tbody>${groups.map((group, index) => html`<tr key=${group.name}><th scope="row"><${RegionName} name=${group.name} index=${group.index} /></th>
        <td class="strong">${rate(columns.allowed[index][at])}</td><td>${rate(columns.denied[index][at])}</td>
        <td>${number(totalOf(series, group.regions, 'allowed'))}<span class="under">${number(totalOf(series, group.regions, 'denied'))} denied</span></td></tr>`)}</tbody>
      <tfoot><tr><th scope="row">together</th><td class="strong">${rate(allowed)}</td><td>${rate(refused)}</td>
        <td>${number(groups.reduce((all, group) => all + totalOf(series, group.regions, 'allowed'), 0))}</td></tr></tfoot></table></div>
  </div></section>`;
}

const SESSIONS = { over: 'its session is over: at most its base', gone: 'destroyed', unknown: 'not known yet' };

function Shares({ series, steps, groups, span, cursor, setCursor, rule, bases, keyShown }) {
  // More steps than an answer holds begin later than was asked for.
  const exact = keyShown !== null && steps !== null && steps.since_ms !== null && steps.to_ms - steps.from_ms > span.ms - 5000;
  const every = useMemo(() => (exact ? stepColumns(steps, groups) : meanColumns(series, groups)), [exact, steps, series, groups]);
  const columns = useMemo(() => (exact ? thinned(every) : every), [exact, every]);
  const toMs = exact ? steps.to_ms : series.to_ms;
  const bounds = useBounds(span, toMs - span.ms, toMs);
  const data = useMemo(() => shareData(columns), [columns]);
  const [held] = useState({ current: null });
  held.current = columns;
  const at = cursor === null ? columns.t.length - 1 : placeAt(columns.t, cursor) ?? 0;
  const units = (index) => {
    const [own, loan] = [columns.own[index][at], columns.loan[index][at]];
    return known(own) ? (own + (loan ?? 0)) * 100 : null;
  };
  const together = sum(groups.map((_, index) => units(index)));
  const when = cursor === null ? 'last' : clock(columns.t[at] * 1000);
  const name = `s ${rule.name} ${keyShown} ${span.range} ${namesOf(groups)} ${exact}`;
  const label = `Shares of ${rule.id}: ${groups.map((group, index) => `${group.name} ${percent(units(index))}`).join(', ')}`;
  return html`<section class="card rule" aria-label="Shares"><div class="pair wide-left">
    <figure><figcaption>Shares of the limit${exact && columns === every ? ', each hand-over as the log has it' : exact ? ', by the hand-overs of the log, on average where they are too many to be told apart' : ', on average over keys and time'}; striped: ${steps?.in_windows ? 'granted of the window, above the region\'s own part' : 'on loan, above the region\'s base'}</figcaption>
      <${Chart} name=${name} height=${230} options=${(width) => shareOptions(width, 230, groups, bounds, exact)} data=${data} syncName="quota" onCursor=${onCursorOf(held, setCursor)} label=${label} />
    </figure>
    <div class="scroll" tabindex="0"><table class="shares"><thead><tr><th scope="col">${when}</th><th scope="col">share</th><th scope="col">base</th><th scope="col">lent</th><th scope="col">on loan</th></tr></thead>
      <tbody>${groups.map((group, index) => {
        const [share, then] = [units(index), columns.base[index][at]];
        const rest = known(then) ? then * 100 : sum(group.regions.map((region) => bases[region] ?? null));
        const session = columns.sessions[index][at];
        return html`<tr key=${group.name}><th scope="row"><${RegionName} name=${group.name} index=${group.index} />
            ${SESSIONS[session] && html`<span class="under">${SESSIONS[session]}</span>`}</th>
          <td class="strong">${percent(share)}</td><td>${percent(rest)}</td>
          <td>${known(share) && share < rest ? percent(rest - share) : NOT_KNOWN}</td>
          <td>${columns.loan[index][at] > 0 ? html`<span class="striped" style=${`--own: ${regionColour(group.index)}`} aria-hidden="true"></span>${percent(columns.loan[index][at] * 100)}` : NOT_KNOWN}</td></tr>`;
      })}</tbody>
      <tfoot><tr><th scope="row">together</th><td class="strong">${percent(together)}</td>
        <td colspan="3" class="quiet">by what is told; a region may have given back more</td></tr></tfoot></table></div>
  </div></section>`;
}

function Keys({ rows, shown, pick, span }) {
  const whole = rows.reduce((all, row) => all + row.allowed + row.denied, 0);
  return html`<${Card} title="Busiest keys" id="busiest">
    ${rows.length === 0 && html`<p class="empty">No key was used in this time.</p>`}
    ${rows.length > 0 && html`<div class="scroll" tabindex="0"><table class="keys"><thead><tr><th scope="col">key</th><th scope="col">per second</th><th scope="col">allowed</th><th scope="col">denied</th><th scope="col">of these</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.key} class=${row.key === shown ? 'picked' : ''}>
        <th scope="row"><a href="#" onClick=${(event) => { event.preventDefault(); pick({ key: row.key }); }}>${keyName(row.key)}</a></th>
        <td>${rate(((row.allowed + row.denied) * 1000) / span.ms)}</td><td class="strong">${number(row.allowed)}</td><td>${number(row.denied)}</td>
        <td>${percent(whole > 0 ? ((row.allowed + row.denied) / whole) * 10_000 : null)}</td></tr>`)}</tbody></table></div>`}
    ${rows.some((row) => isHashed(row.key)) && html`<p class="quiet">#… is a hashed key: so the rule wants it (hash_key), or it is too long to be kept as it is.</p>`}<//>`;
}

const KINDS = { grow: 'given more', keep: 'taken back', welcome: 'new session', renewed: 'session again', over: 'session over', snapshot: 'lowered itself', gone: 'destroyed', leader: 'new leader', window: 'more of this window', window_over: 'the window ended', bases: 'new base' };

function Steps({ told, groups }) {
  const [most, setMost] = useState(STEPS_LISTED);
  const steps = useMemo(() => withBefore(told), [told]);
  const shown = steps.slice(0, Math.min(most, MOST_LISTED));
  return html`<${Card} title="Hand-overs" id="handovers" aside=${html`<span class="quiet">${number(steps.length)} in this time</span>`}>
    ${steps.length === 0 && html`<p class="empty">No share of this key moved in this time.</p>`}
    ${shown.length > 0 && html`<div class="scroll" tabindex="0"><table class="handovers"><thead><tr><th scope="col">when</th><th scope="col" class="text">region</th><th scope="col">share</th><th scope="col" class="text">by</th><th scope="col">record</th></tr></thead>
      <tbody>${shown.map((step) => html`<tr key=${`${step.offset} ${step.n} ${step.region} ${step.kind}`}><td>${clock(step.at_ms)}.${String(step.at_ms % 1000).padStart(3, '0')}</td>
        <td class="text">${step.region ? html`<${RegionName} name=${step.region} index=${colourIn(groups, step.region)} />` : ''}</td>
        <td>${step.after === undefined ? '' : html`${percent(step.before)} → <b>${percent(step.after)}</b>`}</td>
        <td class="text">${KINDS[step.kind] ?? step.kind}</td><td class="quiet">${step.kind === 'bases' ? `version ${step.n}` : html`${step.epoch}·${step.n || NOT_KNOWN}`}</td></tr>`)}</tbody></table></div>`}
    ${steps.length > shown.length && most < MOST_LISTED && html`<button type="button" class="more" onClick=${() => setMost(most * 5)}>Show more</button>`}<//>`;
}

// Each step with what the region had before it; the newest first.
function withBefore(told) {
  const now = Object.fromEntries(Object.entries(told.begin).map(([region, one]) => [region, one.units]));
  const bases = { ...told.bases };
  return told.steps.map((step) => {
    if (step.kind === 'bases') {
      const before = bases[step.region] ?? null;
      bases[step.region] = step.base;
      Object.assign(now, step.held);
      return { ...step, before, after: step.base };
    }
    const before = now[step.region] ?? null;
    Object.assign(now, step.held);
    if (step.key === '') return step;
    const after = step.units ?? bases[step.region] ?? null;
    return { ...step, before, after };
  }).reverse();
}
