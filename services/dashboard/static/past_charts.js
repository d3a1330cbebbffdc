// Charts of what is remembered: allowed by region under the limit, shares as steps, what was denied.

import { axisOf, colour } from './charts.js';
import { clock, known } from './format.js';

const DAY_S = 86_400;
const SETTLING_S = 5;

function timeAxis(span) {
  const values = (_plot, splits) => splits.map((at) => {
    const date = new Date(at * 1000);
    if (span.s > 2 * DAY_S) return date.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
    return span.s > 7_200 ? date.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' }) : clock(at * 1000);
  });
  return axisOf({ values, space: 80, size: 26 });
}

// `span`: {from, to, s} in seconds; read anew at every drawing, so that a live chart moves on.
function base(width, height, span) {
  return {
    width,
    height,
    legend: { show: false },
    padding: [8, 16, 0, 0],
    cursor: { drag: { x: false, y: false }, points: { size: 6 }, y: false },
    scales: { x: { time: true, range: () => [span.from, span.to] } },
  };
}

const ALONE_MOST = 6; // as many as there are colours that everybody can tell apart

// What a chart tells apart, {name, index, regions}: every region, or the busiest and all others as one. `totals`: what
// each was asked for. `index`: of its colour; null: of the others.
export function groupsOf(regions, totals) {
  const one = (name) => ({ name, index: regions.indexOf(name), regions: [name] });
  if (regions.length <= ALONE_MOST) return regions.map(one);
  const asked = (name) => (totals[name]?.allowed ?? 0) + (totals[name]?.denied ?? 0);
  const first = new Set([...regions].sort((a, b) => asked(b) - asked(a)).slice(0, ALONE_MOST - 1));
  const rest = regions.filter((name) => !first.has(name));
  const alone = regions.filter((name) => first.has(name)).map((name, place) => ({ ...one(name), index: place }));
  return [...alone, { name: `${rest.length} others`, index: null, regions: rest }];
}

// The place of a region's colour in them; null: it is one of the others.
export const colourIn = (groups, region) => groups.find((group) => group.index !== null && group.regions[0] === region)?.index ?? null;

const paintOf = (group) => colour(group.index === null ? '--others' : `--region-${group.index + 1}`);

// Diagonal stripes: on loan. Told from the plain colour also by those who see no colours.
function striped(paint) {
  const size = 8 * devicePixelRatio;
  const tile = document.createElement('canvas');
  tile.width = tile.height = size;
  const pen = tile.getContext('2d');
  pen.fillStyle = colour('--surface'); // an area reaches down to 0: what is below must not shine through
  pen.fillRect(0, 0, size, size);
  pen.fillStyle = paint;
  pen.globalAlpha = 0.3;
  pen.fillRect(0, 0, size, size);
  pen.globalAlpha = 1;
  pen.strokeStyle = paint;
  pen.lineWidth = size / 4;
  for (const shift of [-size, 0, size]) {
    pen.beginPath();
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
    pen.stroke();
  }
  return pen.createPattern(tile, 'repeat');
}

// The columns below one another, each the sum of itself and those before it; null where nothing is known.
export function stacked(columns) {
  const sums = [];
  let below = columns.length > 0 ? columns[0].map(() => null) : [];
  for (const column of columns) {
    below = below.map((sum, at) => (known(column[at]) ? (sum ?? 0) + column[at] : sum));
    sums.push(below);
  }
  return sums;
}

// Place by place; null where nothing is known of any.
function total(columns) {
  const sums = columns.length > 0 ? columns[0].map(() => null) : [];
  for (const column of columns) for (let at = 0; at < column.length; at += 1) if (known(column[at])) sums[at] = (sums[at] ?? 0) + column[at];
  return sums;
}

const columnsOf = (series, groups, name) => groups.map((group) => total(group.regions.map((region) => series.regions[region]?.[name] ?? series.at_ms.map(() => null))));

export function rateColumns(series, groups) {
  const [allowed, denied] = [columnsOf(series, groups, 'allowed'), columnsOf(series, groups, 'denied')];
  return { t: series.at_ms.map((at) => at / 1000), allowed, denied, offered: total([...allowed, ...denied]) };
}

export function rateOptions(width, height, groups, limit, span) {
  const options = base(width, height, span);
  const least = limit ? limit * 1.15 : 1;
  options.scales.y = { range: (_plot, _min, max) => [0, Math.max(least, (max ?? 0) * 1.08)] };
  options.axes = [timeAxis(span), axisOf({ size: 52, space: 36 })];
  options.series = [{}];
  for (const group of [...groups].reverse()) {
    options.series.push({ label: group.name, fill: paintOf(group), stroke: colour('--surface'), width: 1, points: { show: false } });
  }
  options.series.push({ label: 'offered', stroke: colour('--offered'), dash: [2, 3], width: 2, points: { show: false } });
  options.series.push({ label: 'limit', stroke: colour('--limit'), width: 1.5, points: { show: false } });
  return options;
}

export const rateData = (columns, limit) => [
  columns.t, ...stacked(columns.allowed).reverse(), columns.offered, columns.t.map(() => limit ?? null),
];

export function deniedOptions(width, height, groups, span) {
  const options = base(width, height, span);
  options.scales.y = { range: (_plot, _min, max) => [0, Math.max(1, (max ?? 0) * 1.1)] };
  options.axes = [timeAxis(span), axisOf({ size: 52, space: 30 })];
  options.series = [{}];
  for (const group of [...groups].reverse()) {
    options.series.push({ label: group.name, fill: paintOf(group), stroke: colour('--surface'), width: 1, points: { show: false } });
  }
  return options;
}

// Nothing is drawn of what is 0 all the time: a line on the floor would look like something that was denied.
export const deniedData = (columns) => {
  const sums = stacked(columns.denied);
  return [columns.t, ...sums.map((sum, at) => (columns.denied[at].some((one) => one > 0) ? sum : sum.map(() => null))).reverse()];
};

// ---- shares

// What every group held, step by step: {t, own, loan, base, sessions}, each by group; % of the limit. Sessions of a region alone.
export function stepColumns(told, groups) {
  const regions = new Map(); // name -> {units, base, session, group}
  groups.forEach((group, at) => {
    for (const name of group.regions) regions.set(name, { ...(told.begin[name] ?? { units: 0, base: 0, session: 'unknown' }), group: at });
  });
  const [own, loan, base] = [groups.map(() => 0), groups.map(() => 0), groups.map(() => 0)];
  const count = (one, sign) => {
    base[one.group] += sign * one.base;
    own[one.group] += sign * Math.min(one.units, one.base);
    loan[one.group] += sign * Math.max(0, one.units - one.base);
  };
  for (const one of regions.values()) count(one, 1);
  const change = (name, what) => {
    const one = regions.get(name);
    if (one === undefined) return;
    count(one, -1);
    Object.assign(one, what);
    count(one, 1);
  };
  const columns = { t: [], own: groups.map(() => []), loan: groups.map(() => []), base: groups.map(() => []), sessions: groups.map(() => []) };
  let lastMs = 0;
  const put = (ms) => {
    const atMs = Math.max(ms, lastMs); // of one moment only what holds after it
    if (atMs > lastMs) columns.t.push(atMs / 1000);
    lastMs = atMs;
    const place = columns.t.length - 1;
    groups.forEach((group, at) => {
      columns.own[at][place] = own[at] / 100;
      columns.loan[at][place] = loan[at] / 100;
      columns.base[at][place] = base[at] / 100;
      columns.sessions[at][place] = group.regions.length === 1 ? regions.get(group.regions[0]).session : null;
    });
  };
  put(Math.max(told.from_ms, told.since_ms ?? told.from_ms));
  for (const step of told.steps) {
    if (!regions.has(step.region)) continue;
    if (step.key === '' && step.kind !== 'bases') regions.get(step.region).session = { over: 'over', gone: 'gone' }[step.kind] ?? 'alive';
    if (step.kind === 'bases') change(step.region, { base: step.base });
    for (const [name, units] of Object.entries(step.held)) change(name, { units });
    put(step.at_ms);
  }
  put(told.to_ms);
  return columns;
}

const STEPS_DRAWN_MOST = 400; // about one a pixel and a half: more would be a comb

// No more steps than can be told apart: of more, what was held on average, in as many equal parts of the time. The last
// place stays what holds at the end.
export function thinned(columns, most = STEPS_DRAWN_MOST) {
  const { t } = columns;
  if (t.length <= most) return columns;
  const [first, last] = [t[0], t.at(-1)];
  const width = (last - first) / most;
  const begins = Array.from({ length: most }, (_, part) => first + part * width);
  const mean = (values) => {
    let at = 0;
    const means = begins.map((begin) => {
      let [sum, now] = [0, begin];
      const end = begin + width;
      while (now < end) {
        while (at + 1 < t.length && t[at + 1] <= now) at += 1;
        const next = Math.min(end, t[at + 1] ?? end);
        sum += values[at] * (next - now);
        now = next;
      }
      return sum / width;
    });
    return [...means, values.at(-1)];
  };
  const times = [...begins, last];
  const newest = (values) => times.map((at) => values[placeAt(t, at)]);
  return {
    t: times, own: columns.own.map(mean), loan: columns.loan.map(mean), base: columns.base.map(mean), sessions: columns.sessions.map(newest),
  };
}

// The same from averages, where there are too many steps, or several keys.
export function meanColumns(series, groups) {
  const [rest, lent, loan] = ['base', 'lent', 'borrowed'].map((name) => columnsOf(series, groups, name));
  return {
    t: series.at_ms.map((at) => at / 1000),
    own: rest.map((column, index) => column.map((units, at) => (known(units) ? (units - lent[index][at]) / 100 : null))),
    loan: loan.map((column) => column.map((units) => (known(units) ? units / 100 : null))),
    base: rest.map((column) => column.map((units) => (known(units) ? units / 100 : null))),
    sessions: groups.map(() => series.at_ms.map(() => null)),
  };
}

export function shareOptions(width, height, groups, span, stepped) {
  const options = base(width, height, span);
  options.scales.y = { range: [0, 104] };
  options.axes = [timeAxis(span), axisOf({ values: (_p, splits) => splits.map((v) => `${v} %`), size: 52, space: 36 })];
  options.series = [{}];
  const paths = stepped ? window.uPlot.paths.stepped({ align: 1 }) : undefined;
  for (const group of [...groups].reverse()) {
    const paint = paintOf(group);
    const line = { stroke: colour('--surface'), width: 1, points: { show: false }, paths };
    options.series.push({ ...line, label: `${group.name} on loan`, fill: () => striped(paint) });
    options.series.push({ ...line, label: group.name, fill: paint });
  }
  options.series.push({ label: 'limit', stroke: colour('--limit'), width: 1.5, points: { show: false } });
  return options;
}

export const shareData = (columns) => [
  columns.t, ...stacked(columns.own.flatMap((own, index) => [own, columns.loan[index]])).reverse(), columns.t.map(() => 100),
];

// The newest place that tells all regions alike: of the last seconds, which some region may not have reached yet, the
// one of which most regions are known. Who is not known there is not known.
export function newestPlace(times, columns) {
  let [place, most] = [times.length - 1, 0];
  for (let at = times.length - 1; at >= 0 && times.at(-1) - times[at] <= SETTLING_S; at -= 1) {
    const count = columns.filter((column) => known(column[at])).length;
    if (count > most) [place, most] = [at, count];
  }
  return place;
}

// The last place at or before a moment; null before the first.
export function placeAt(times, atS) {
  let [low, high] = [0, times.length - 1];
  if (times.length === 0 || times[0] > atS) return null;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (times[middle] <= atS) low = middle;
    else high = middle - 1;
  }
  return low;
}
