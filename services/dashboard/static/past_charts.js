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

const regionPaint = (index) => colour(`--region-${(index % 6) + 1}`);

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

const total = (columns) => stacked(columns).at(-1) ?? [];

export function rateColumns(series, regions) {
  const of = (name) => regions.map((region) => series.regions[region]?.[name] ?? series.at_ms.map(() => null));
  const [allowed, denied] = [of('allowed'), of('denied')];
  return { t: series.at_ms.map((at) => at / 1000), allowed, denied, offered: total([...allowed, ...denied]) };
}

export function rateOptions(width, height, regions, limit, span) {
  const options = base(width, height, span);
  const least = limit ? limit * 1.15 : 1;
  options.scales.y = { range: (_plot, _min, max) => [0, Math.max(least, (max ?? 0) * 1.08)] };
  options.axes = [timeAxis(span), axisOf({ size: 52, space: 36 })];
  options.series = [{}];
  for (let index = regions.length - 1; index >= 0; index -= 1) {
    options.series.push({ label: regions[index], fill: regionPaint(index), stroke: colour('--surface'), width: 1, points: { show: false } });
  }
  options.series.push({ label: 'offered', stroke: colour('--offered'), dash: [2, 3], width: 2, points: { show: false } });
  options.series.push({ label: 'limit', stroke: colour('--limit'), width: 1.5, points: { show: false } });
  return options;
}

export const rateData = (columns, limit) => [
  columns.t, ...stacked(columns.allowed).reverse(), columns.offered, columns.t.map(() => limit ?? null),
];

export function deniedOptions(width, height, regions, span) {
  const options = base(width, height, span);
  options.scales.y = { range: (_plot, _min, max) => [0, Math.max(1, (max ?? 0) * 1.1)] };
  options.axes = [timeAxis(span), axisOf({ size: 52, space: 30 })];
  options.series = [{}];
  for (let index = regions.length - 1; index >= 0; index -= 1) {
    options.series.push({ label: regions[index], fill: regionPaint(index), stroke: colour('--surface'), width: 1, points: { show: false } });
  }
  return options;
}

export const deniedData = (columns) => [columns.t, ...stacked(columns.denied).reverse()];

// ---- shares

// What every region held, step by step: {t, own: [by region], loan: [by region], sessions: [by region]}; % of the limit.
export function stepColumns(told, regions) {
  const now = regions.map((region) => ({ ...(told.begin[region] ?? { units: 0, base: 0, session: 'unknown' }) }));
  const leases = now.map((one) => (one.is_base ? null : one.units));
  const columns = { t: [], own: regions.map(() => []), loan: regions.map(() => []), sessions: regions.map(() => []) };
  const push = (atMs) => {
    columns.t.push(atMs / 1000);
    regions.forEach((_, index) => {
      const { units, base: rest, session } = now[index];
      columns.own[index].push(Math.min(units, rest) / 100);
      columns.loan[index].push(Math.max(0, units - rest) / 100);
      columns.sessions[index].push(session);
    });
  };
  push(Math.max(told.from_ms, told.since_ms ?? told.from_ms));
  for (const step of told.steps) {
    const index = regions.indexOf(step.region);
    if (index < 0) continue;
    const one = now[index];
    if (step.key === '') one.session = { over: 'over', gone: 'gone' }[step.kind] ?? 'alive';
    else leases[index] = step.units;
    one.units = one.session === 'gone' ? 0 : one.session === 'over' ? one.base : leases[index] ?? one.base;
    if (columns.t.at(-1) >= step.at_ms / 1000) for (const column of [...columns.own, ...columns.loan, ...columns.sessions, columns.t]) column.pop();
    push(step.at_ms);
  }
  push(told.to_ms);
  return columns;
}

// The same from averages, where there are too many steps, or several keys.
export function meanColumns(series, regions) {
  const of = (name) => regions.map((region) => series.regions[region]?.[name] ?? series.at_ms.map(() => null));
  const [rest, lent, loan] = [of('base'), of('lent'), of('borrowed')];
  return {
    t: series.at_ms.map((at) => at / 1000),
    own: rest.map((column, index) => column.map((units, at) => (known(units) ? (units - lent[index][at]) / 100 : null))),
    loan: loan.map((column) => column.map((units) => (known(units) ? units / 100 : null))),
    sessions: regions.map(() => series.at_ms.map(() => null)),
  };
}

export function shareOptions(width, height, regions, span, stepped) {
  const options = base(width, height, span);
  options.scales.y = { range: [0, 104] };
  options.axes = [timeAxis(span), axisOf({ values: (_p, splits) => splits.map((v) => `${v} %`), size: 52, space: 36 })];
  options.series = [{}];
  const paths = stepped ? window.uPlot.paths.stepped({ align: 1 }) : undefined;
  for (let index = regions.length - 1; index >= 0; index -= 1) {
    const paint = regionPaint(index);
    const line = { stroke: colour('--surface'), width: 1, points: { show: false }, paths };
    options.series.push({ ...line, label: `${regions[index]} on loan`, fill: () => striped(paint) });
    options.series.push({ ...line, label: regions[index], fill: paint });
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
