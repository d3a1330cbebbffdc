import { html, render, useEffect, useMemo, useReducer, useState } from './vendor/htm-preact-standalone.module.js';
import { Chart, rateData, rateOptions, regionColour, shareData, shareOptions } from './charts.js';
import { Feed, seriesName } from './feed.js';
import { clock, duration, isHashed, keyName, known, number, percent, rate, NOT_KNOWN } from './format.js';

const OPEN_AT_FIRST = 8; // rules with charts at once; more would keep a small machine busy
const SPANS = [[60, '1 min'], [180, '3 min'], [300, '5 min']];
const LINKS = {
  linked: ['●', 'linked'],
  silent: ['◐', 'silent'],
  cut: ['○', 'cut off'],
  unknown: ['◌', 'not heard of yet'],
};

function App({ feed }) {
  const [, refresh] = useReducer((count) => count + 1, 0);
  const [span, setSpan] = useState(180);
  useEffect(() => {
    feed.onChange = refresh;
    refresh();
  }, []);
  const { status } = feed;
  const wrong = status ? status.sentences.length + (feed.connected ? 0 : 1) : 0;
  useEffect(() => {
    document.title = wrong > 0 ? `(${wrong}) Apportion` : 'Apportion';
  }, [wrong]);
  if (!status) return html`<${Top} feed=${feed} /><p class="empty">Waiting for the first data…</p>`;
  const globals = feed.rules.filter((rule) => rule.scope === 'global');
  const locals = feed.rules.filter((rule) => rule.scope !== 'global');
  return html`
    <${Top} feed=${feed} />
    <main>
      <${Sentences} feed=${feed} />
      <${Regions} status=${status} />
      <section aria-labelledby="global-title">
        <div class="section-head">
          <h2 id="global-title">Global limits</h2>
          <${Spans} span=${span} setSpan=${setSpan} />
        </div>
        ${globals.length === 0 && html`<${NoGlobals} />`}
        ${globals.map((rule, index) => html`<${GlobalRule} key=${rule.name} rule=${rule} feed=${feed} span=${span}
          openAtFirst=${index < OPEN_AT_FIRST} />`)}
      </section>
      ${locals.length > 0 && html`<${LocalRules} rules=${locals} feed=${feed} />`}
    </main>
    <footer>Shares are parts of a limit; in force together they are never more than 100 %.
      The same numbers: <code>apportion status</code>.</footer>`;
}

function Top({ feed }) {
  const { status } = feed;
  const leader = status?.leader;
  const live = feed.connected ? 'live' : feed.lastHeardMs ? `no data since ${clock(feed.lastHeardMs)}` : 'connecting…';
  return html`
    <header class="top">
      <h1><span class="mark" aria-hidden="true"></span>Apportion</h1>
      ${leader && html`<dl class="facts">
        <div><dt>leader</dt><dd>${leader.region ? `${leader.region}, ` : ''}epoch ${leader.epoch ?? NOT_KNOWN}</dd></div>
        <div><dt>last beat</dt><dd class=${leader.late ? 'bad' : ''}>${duration(leader.beat_age_ms)} ago</dd></div>
        <div><dt>read lag</dt><dd>${duration(leader.lag_ms)}</dd></div>
      </dl>`}
      <p class=${feed.connected ? 'live on' : 'live off'} role="status">
        <span aria-hidden="true">${feed.connected ? '●' : '○'}</span> ${live}</p>
    </header>
    ${status?.mode === 'embedded' && html`<p class="banner">Embedded mode: all regions run in one process, without
      Redis and Kafka. For trying things out, not for production.</p>`}`;
}

function Sentences({ feed }) {
  const said = feed.status.sentences;
  const lost = feed.connected ? [] : [{ level: 'bad', times_ms: [], template: `The stream of this page is interrupted; what you see is
    as of ${clock(feed.lastHeardMs)}. It connects again by itself.` }];
  const all = [...lost, ...said];
  if (all.length === 0) {
    return html`<p class="sentence good" role="status"><b aria-hidden="true">✓</b> All regions are linked and
      every store answers.</p>`;
  }
  return html`<ul class="sentences" role="status">${all.map(
    (one) => html`<li key=${one.template} class=${`sentence ${one.level}`}>
      <b aria-hidden="true">${one.level === 'bad' ? '✕' : '!'}</b> <span>${filled(one)}</span></li>`,
  )}</ul>`;
}

// {0}, {1} … are times: shown in the zone of who reads them.
const filled = (sentence) => sentence.template.replace(/\{(\d+)\}/g, (_all, at) => clock(sentence.times_ms[at]));

function Regions({ status }) {
  return html`<section aria-labelledby="regions-title">
    <h2 id="regions-title">Regions</h2>
    ${status.regions.length === 0 && html`<p class="empty">No region has reported yet.</p>`}
    <ul class="regions">${status.regions.map(
      (region, index) => html`<${Region} key=${region.name} region=${region} index=${index} />`,
    )}</ul>
  </section>`;
}

function Region({ region, index }) {
  const [sign, word] = LINKS[region.link] ?? LINKS.unknown;
  const since = region.link === 'cut' && known(region.since_ms) ? ` since ${clock(region.since_ms)}` : '';
  return html`<li class=${`card region ${region.link}`} style=${`--own: ${regionColour(index)}`}>
    <h3><span class="swatch" aria-hidden="true"></span>${region.name}
      <span class="link"><span aria-hidden="true">${sign}</span> ${word}${since}</span></h3>
    <dl>
      <${Count} name="Redis" part=${region.points.ok} whole=${region.points.total} />
      <${Count} name="nodes" part=${region.nodes.ready} whole=${region.nodes.total} />
      <div><dt>allowed</dt><dd>${rate(region.allowed_per_s)}</dd></div>
      <div><dt>denied</dt><dd>${rate(region.denied_per_s)}</dd></div>
      ${region.without_redis_per_s > 0 && html`<div class="wide"><dt>decided without Redis</dt>
        <dd class="bad">${rate(region.without_redis_per_s)}</dd></div>`}
      ${region.at_floor_per_s > 0 && html`<div class="wide"><dt>decided at the floor</dt>
        <dd>${rate(region.at_floor_per_s)}</dd></div>`}
      <${Left} name="session" ms=${region.session_left_ms} wholeMs=${region.session_whole_ms} />
      <${Left} name="consent" ms=${region.consent_left_ms} wholeMs=${region.consent_whole_ms} />
    </dl>
  </li>`;
}

function Count({ name, part, whole }) {
  const bad = known(part) && known(whole) && part < whole;
  return html`<div><dt>${name}</dt><dd class=${bad ? 'bad' : ''}>${known(part) ? part : NOT_KNOWN} of
    ${' '}${known(whole) ? whole : NOT_KNOWN}</dd></div>`;
}

function Left({ name, ms, wholeMs }) {
  const part = known(ms) ? Math.min(1, Math.max(0, ms / wholeMs)) : 0;
  return html`<div class="left"><dt>${name} left</dt><dd>${known(ms) && ms <= 0 ? 'ended' : duration(ms)}</dd>
    <span class="bar" aria-hidden="true"><span style=${`width: ${part * 100}%`}></span></span></div>`;
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
      <h3 id=${`rule-${rule.name}`}>${rule.id}${rule.domain !== 'default' && html` <small>in ${rule.domain}</small>`}</h3>
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

const root = document.getElementById('app');
const feed = new Feed(() => {});
root.replaceChildren();
render(html`<${App} feed=${feed} />`, root);
