// Global limits: shares of the regions, and what is asked, allowed and denied.

import { html, useEffect, useMemo, useState } from '../vendor/htm-preact-standalone.module.js';
import { Chart, rateData, rateOptions, regionColour, shareData, shareOptions } from '../charts.js';
import { seriesName } from '../feed.js';
import { clock, isHashed, keyName, known, number, percent, rate } from '../format.js';

const OPEN_AT_FIRST = 4; // rules with charts at once; more would keep a small machine busy
const SHOWN_MOST = 40;
const SPANS = [[60, '1 min'], [180, '3 min'], [300, '5 min']];

export default function Quota({ feed, route }) {
  const [span, setSpan] = useState(180);
  if (!feed.status) return html`<h1>Quota</h1><p class="empty" role="status">Waiting for the first data…</p>`;
  const wanted = (rule) => !route.query.rule || rule.name === route.query.rule;
  const globals = feed.rules.filter((rule) => rule.scope === 'global' && wanted(rule));
  const locals = feed.rules.filter((rule) => rule.scope !== 'global' && wanted(rule));
  return html`
    <div class="page-head"><h1>Quota</h1><${Spans} span=${span} setSpan=${setSpan} /></div>
    ${route.query.rule && html`<p><a href="#/quota">All limits</a></p>`}
    ${globals.length + locals.length === 0 && html`<${NoGlobals} />`}
    ${globals.slice(0, SHOWN_MOST).map((rule, index) => html`<${GlobalRule} key=${rule.name} rule=${rule} feed=${feed} span=${span}
      openAtFirst=${index < OPEN_AT_FIRST} />`)}
    ${globals.length > SHOWN_MOST && html`<p class="empty">${globals.length - SHOWN_MOST} more: pick one on the overview.</p>`}
    ${locals.length > 0 && html`<${LocalRules} rules=${locals.slice(0, SHOWN_MOST)} feed=${feed} />`}`;
}

function Spans({ span, setSpan }) {
  return html`<div class="spans" role="group" aria-label="time shown">${SPANS.map(
    ([seconds, name]) => html`<button type="button" aria-pressed=${span === seconds}
      onClick=${() => setSpan(seconds)}>${name}</button>`,
  )}</div>`;
}

function NoGlobals() {
  return html`<div class="card empty"><p>No rule of global scope is in force yet. For example:</p>
    <pre>curl -X PUT localhost:CONTROL_PORT/rules/orders-free -H 'content-type: application/json' \\
  -d '{"match": {"resource": "POST /orders"}, "capacity": 20, "refill_per_second": 10, "scope": "global"}'</pre></div>`;
}

const EMPTY = { t: [], a: [], d: [], s: {} };

function GlobalRule({ rule, feed, span, openAtFirst }) {
  const [open, setOpen] = useState(openAtFirst);
  const [picked, setPicked] = useState('');
  const [cursor, setCursor] = useState(null);
  const entry = feed.points[rule.name] ?? { total: { a: null, d: null }, keys: [] };
  const keys = entry.keys.map(([key]) => key);
  const key = picked || keys[0] || null;
  useEffect(() => {
    if (key !== null) feed.want(rule.name, key);
  }, [key, feed.hello]);
  const series = (key !== null && feed.series.get(seriesName(rule.name, key))) || EMPTY;
  const point = entry.keys.find(([name]) => name === key)?.[1];
  const now = feed.status.now_ms;
  const { regions } = feed;
  const shares = useMemo(() => shareData(series, regions), [series, now, regions.join()]);
  const rates = useMemo(() => rateData(series, rule.rate_per_s), [series, now]);
  const identity = `${rule.name} ${key} ${span} ${regions.join()} ${rule.version}`;
  return html`<article class="card rule" aria-labelledby=${`rule-${rule.name}`}>
    <header>
      <h2 id=${`rule-${rule.name}`}>${rule.id}${rule.domain !== 'default' && html` <small>in ${rule.domain}</small>`}</h2>
      <p class="limit">${rule.limit}${rule.distribution === 'static' && ' · split by the bases alone'}</p>
      ${rule.description && html`<p class="quiet">${rule.description}</p>`}
      <dl class="facts">
        <div><dt>allowed</dt><dd>${rate(entry.total.a)}</dd></div>
        <div><dt>denied</dt><dd>${rate(entry.total.d)}</dd></div>
        <div><dt>offered</dt><dd>${rate(known(entry.total.a) ? entry.total.a + (entry.total.d ?? 0) : null)}</dd></div>
      </dl>
    </header>
    ${!open && html`<button type="button" class="more" onClick=${() => setOpen(true)}>Show charts</button>`}
    ${open && (key === null
      ? html`<p class="empty">No key of this rule has been used lately. Unused keys rest at their bases:
          ${' '}${regions.map((region) => `${region} ${percent(rule.bases[region])}`).join(', ')}.</p>`
      : html`
    <label class="pick">Key
      <select value=${picked} onChange=${(event) => setPicked(event.target.value)}>
        <option value="">busiest now: ${keyName(keys[0] ?? key)}</option>
        ${[...new Set([...keys, ...(picked ? [picked] : [])])].map(
          (name) => html`<option value=${name}>${keyName(name)}</option>`,
        )}
      </select>
      ${[key, ...keys].some(isHashed) && html` <small class="quiet">#… is a hashed key: so the rule wants it
        (hash_key), or it is too long to be kept as it is</small>`}</label>
    <div class="pair">
      <figure><figcaption>Shares of the regions</figcaption>
        <${Chart} name=${`s ${identity}`} options=${(width) => shareOptions(width, regions, span)} data=${shares}
          syncName=${rule.name} onCursor=${setCursor}
          label=${`Shares of ${rule.id} over time: ${regions.map((r) => `${r} ${percent(point?.s[r])}`).join(', ')}`} />
        <${ShareTable} rule=${rule} regions=${regions} series=${series} point=${point} cursor=${cursor} />
      </figure>
      <figure><figcaption>Requests of this key, cost per second</figcaption>
        <${Chart} name=${`r ${identity}`} options=${(width) => rateOptions(width, rule.rate_per_s, span)} data=${rates}
          syncName=${rule.name} onCursor=${setCursor}
          label=${`Rates of ${rule.id}: allowed ${rate(point?.a)}, denied ${rate(point?.d)}`} />
        <${RateTable} rule=${rule} series=${series} point=${point} cursor=${cursor} />
      </figure>
    </div>`)}
  </article>`;
}

function ShareTable({ rule, regions, series, point, cursor }) {
  const at = cursor !== null && cursor < series.t.length ? cursor : null;
  const shareOf = (region) => (at === null ? point?.s[region] : series.s[region]?.[at]);
  const all = regions.map(shareOf).filter(known);
  const total = all.length > 0 ? all.reduce((sum, share) => sum + share, 0) : null;
  return html`<table><thead><tr>
      <th scope="col">${at === null ? 'now' : clock(series.t[at] * 1000)}</th><th scope="col">share</th>
      <th scope="col">base</th><th scope="col" title="–: at ease, so it tells nobody">wants</th><th scope="col">allowed</th><th scope="col">denied</th>
    </tr></thead><tbody>${regions.map(
      (region, index) => html`<tr key=${region}>
        <th scope="row"><span class="swatch" aria-hidden="true" style=${`--own: ${regionColour(index)}`}></span>${region}</th>
        <td class="strong">${percent(shareOf(region))}</td><td>${percent(rule.bases[region])}</td>
        <td>${at === null ? percent(point?.w[region] || null) : ''}</td>
        <td>${at === null ? rate(point?.r[region]?.[0]) : ''}</td>
        <td>${at === null ? rate(point?.r[region]?.[1]) : ''}</td></tr>`,
    )}</tbody><tfoot><tr><th scope="row">together</th><td class=${total > 10_000 ? 'strong bad' : 'strong'}>${percent(total)}</td>
      <td colspan="4" class="quiet">never above 100 %</td></tr></tfoot></table>`;
}

function RateTable({ rule, series, point, cursor }) {
  const at = cursor !== null && cursor < series.t.length ? cursor : null;
  const allowed = at === null ? point?.a : series.a[at];
  const denied = at === null ? point?.d : series.d[at];
  const offered = known(allowed) ? allowed + (denied ?? 0) : null;
  const rows = [
    ['offered', 'offered', offered], ['allowed', 'allowed', allowed], ['denied', 'denied', denied],
    ...(known(rule.rate_per_s) ? [['limit', 'limit', rule.rate_per_s]] : []),
  ];
  return html`<table class="narrow"><thead><tr><th scope="col">${at === null ? 'now' : clock(series.t[at] * 1000)}</th>
    <th scope="col">per second</th></tr></thead><tbody>${rows.map(
      ([name, kind, value]) => html`<tr><th scope="row"><span class=${`line ${kind}`} aria-hidden="true"></span>${name}</th>
        <td class="strong">${number(value)}</td></tr>`,
    )}</tbody></table>`;
}

function LocalRules({ rules, feed }) {
  return html`<section aria-labelledby="local-title"><h2 id="local-title">Limits inside each region</h2>
    <div class="card scroll"><table><thead><tr><th scope="col">rule</th><th scope="col">limit in each region</th>
      <th scope="col">allowed</th><th scope="col">denied</th></tr></thead><tbody>${rules.map((rule) => {
        const total = feed.points[rule.name]?.total;
        return html`<tr key=${rule.name}><th scope="row">${rule.id}</th><td class="text">${rule.limit}</td>
          <td>${rate(total?.a)}</td><td>${rate(total?.d)}</td></tr>`;
      })}</tbody></table></div></section>`;
}
