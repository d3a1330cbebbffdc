// The parts that pages are made of.

import { html, useMemo } from './view.js';
import { clock, known, NOT_KNOWN } from './format.js';

const PATHS = {
  overview: 'M2 2h5v5H2zM9 2h5v3H9zM9 7h5v7H9zM2 9h5v5H2z',
  quota: 'M2 13h12M2 10l3-4 3 2 4-5 2 2',
  region: 'M8 14s5-4.2 5-8A5 5 0 0 0 3 6c0 3.8 5 8 5 8zM8 7.8a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6z',
  sync: 'M3 6a5.2 5.2 0 0 1 9.6-1M13 2v3.3H9.7M13 10a5.2 5.2 0 0 1-9.6 1M3 14v-3.3h3.3',
  rules: 'M5 3.5h9M5 8h9M5 12.5h9M2 3.5h.5M2 8h.5M2 12.5h.5',
  keys: 'M10.2 9.3a3.6 3.6 0 1 0-3.5-3.5L2 10.500V14h3.500v-2H7.500v-2z',
  audit: 'M8 14A6 6 0 1 0 2.600 5.400M2 2.500v3.200h3.200M8 4.800V8l2.300 1.600',
  try: 'M4.500 2.800v10.400L13 8z',
  theme: 'M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12',
  keyboard: 'M1.500 4h13v8.500h-13zM4 6.700h.5M7 6.700h.5M10 6.700h.5M5 10h6',
};

export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

export function LiveSign({ feed }) {
  const words = feed.connected ? 'live' : feed.lastHeardMs ? `no data since ${clock(feed.lastHeardMs)}` : 'connecting…';
  return html`<p class=${feed.connected ? 'live on' : 'live off'} role="status">
    <span aria-hidden="true">${feed.connected ? '●' : '○'}</span> ${words}</p>`;
}

const LINKS = {
  linked: ['●', 'linked'],
  silent: ['◐', 'silent'],
  cut: ['○', 'cut off'],
  unknown: ['◌', 'not heard of yet'],
  gone: ['✕', 'destroyed'],
};

// The link of a region, by sign, word and colour.
export function Link({ region }) {
  const [sign, word] = LINKS[region.link] ?? LINKS.unknown;
  const since = region.link === 'cut' && known(region.since_ms) ? ` since ${clock(region.since_ms)}` : '';
  return html`<span class=${`link ${region.link}`}><span aria-hidden="true">${sign}</span> ${word}${since}</span>`;
}

const TROUBLE = { cut: 0, silent: 1, unknown: 2, linked: 3 };

// [{region, index}], those with trouble first: of a hundred regions the wrong one must not be looked for.
export function byTrouble(regions) {
  const rows = regions.map((region, index) => ({ region, index }));
  return rows.sort((one, other) => (TROUBLE[one.region.link] ?? 2) - (TROUBLE[other.region.link] ?? 2) || one.index - other.index);
}

const LEVELS = { good: '✓', info: '·', warn: '!', bad: '✕' };

export function Badge({ level = 'info', children }) {
  return html`<span class=${`badge ${level}`}><span aria-hidden="true">${LEVELS[level]}</span> ${children}</span>`;
}

// {0}, {1} … are times: shown in the zone of who reads them.
export const filled = (sentence) => sentence.template.replace(/\{(\d+)\}/g, (_all, at) => clock(sentence.times_ms[at])).replace(/\{\{/g, '{').replace(/\}\}/g, '}');

export function Sentences({ status, well }) {
  if (status.sentences.length === 0) {
    return html`<p class="sentence good" role="status"><b aria-hidden="true">✓</b> <span>${well}</span></p>`;
  }
  return html`<div role="status"><ul class="sentences">${status.sentences.map(
    (one) => html`<li key=${one.template} class=${`sentence ${one.level}`}>
      <b aria-hidden="true">${LEVELS[one.level]}</b> <span>${filled(one)}</span></li>`,
  )}</ul></div>`;
}

// What `draw` draws, anew only when one of `by` is another than before: much of a page has not changed with each frame.
export const Still = ({ by, draw }) => useMemo(draw, by);

// A titled card; `aside` stands at the right of its title.
export function Card({ title, aside, children, id, kind = '' }) {
  const titleId = title ? `card-${id ?? title.replace(/\W+/g, '-').toLowerCase()}` : null;
  return html`<section class=${`card ${kind}`} aria-labelledby=${titleId}>
    ${title && html`<div class="card-head"><h2 id=${titleId}>${title}</h2>${aside}</div>`}${children}</section>`;
}

// [[name, value, class?], …]; what is not known is a dash.
export const Facts = ({ rows, kind = '' }) => html`<dl class=${`facts ${kind}`}>${rows.filter(Boolean).map(
  ([name, value, level]) => html`<div key=${name}><dt>${name}</dt><dd class=${level ?? ''}>${value ?? NOT_KNOWN}</dd></div>`,
)}</dl>`;

// A bar beside its number: `part` from 0 to 1, more is shown as full.
export function Meter({ part, level = '', label }) {
  const width = known(part) ? Math.min(1, Math.max(0, part)) * 100 : 0;
  return html`<span class=${`meter ${level}`}><span class="bar" aria-hidden="true"><span style=${`width: ${width}%`}></span></span>
    <span class="meter-label">${label}</span></span>`;
}

// One of several; `options`: [[value, name], …].
export const Segments = ({ label, options, value, onPick }) => html`<div class="segments" role="group" aria-label=${label}>${options.map(
  ([one, name]) => html`<button type="button" key=${one} aria-pressed=${value === one} onClick=${() => onPick(one)}>${name}</button>`,
)}</div>`;

export const Search = ({ label, value, onInput, placeholder = '' }) => html`<label class="search"><span class="hidden">${label}</span>
  <input type="search" value=${value} placeholder=${placeholder || label} onInput=${(event) => onInput(event.target.value)} autocomplete="off" spellcheck=${false} /></label>`;

export const Field = ({ label, hint, children }) => html`<label class="field"><span>${label}${hint && html` <small>${hint}</small>`}</span>${children}</label>`;

// What went wrong with a question to the control API: its own words, and each field that it names.
export function Problem({ answer, openSignIn }) {
  if (!answer || answer.ok) return null;
  const { problem, status } = answer;
  return html`<div class="card problem" role="alert"><h3>${problem.title ?? 'It did not work'}${status ? ` (${status})` : ''}</h3>
    ${problem.detail && html`<p>${problem.detail}</p>`}
    ${problem.errors?.length > 0 && html`<ul>${problem.errors.map((one) => html`<li>${one.field && html`<code>${one.field}</code> `}${one.problem}</li>`)}</ul>`}
    ${(status === 401 || status === 403) && openSignIn && html`<button type="button" onClick=${openSignIn}>Sign in</button>`}</div>`;
}

// `index` null: of several together.
export const RegionName = ({ name, index }) => html`<span class="region-name"><span class="swatch" aria-hidden="true"
  style=${`--own: ${regionColour(index)}`}></span>${name}</span>`;
export const regionColour = (index) => (index === null ? 'var(--others)' : `var(--region-${(index % 6) + 1})`);

// A line of the last minute, without axes; the number that it ends with stands beside it.
export function Spark({ values, kind = '' }) {
  const seen = values.filter(known);
  // Nothing of what is 0 all the time: a line on the floor would look like something that was seen.
  if (seen.length < 2 || !seen.some((value) => value > 0)) return html`<svg class="spark" viewBox="0 0 100 24" aria-hidden="true"></svg>`;
  const most = Math.max(...seen, 1);
  const step = 100 / (values.length - 1);
  const points = values.map((value, at) => (known(value) ? `${(at * step).toFixed(1)},${(22 - (value / most) * 20).toFixed(1)}` : null));
  return html`<svg class=${`spark ${kind}`} viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
    <polyline points=${points.filter(Boolean).join(' ')} /></svg>`;
}
