// The two charts of a global rule, on uPlot: shares stacked to 100 %, and what was offered, allowed and denied.

import { html, useEffect, useRef } from './vendor/htm-preact-standalone.module.js';

const HEIGHT = 190;

// A colour of the style sheet as the theme in force makes it: a canvas understands neither var() nor light-dark().
const probe = document.createElement('i');
export function colour(name) {
  if (!probe.isConnected) {
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
export const regionColour = (index) => `var(--region-${(index % 6) + 1})`;

const axisOf = (extra) => ({
  stroke: colour('--quiet'),
  grid: { stroke: colour('--grid'), width: 1 },
  ticks: { show: false },
  font: '11px system-ui, sans-serif',
  ...extra,
});

const timeAxis = () =>
  axisOf({
    values: (_plot, splits) => splits.map((at) => new Date(at * 1000).toLocaleTimeString('en-GB')),
    space: 80,
    size: 26,
  });

const lastSeconds = (end, spanS) => [end - spanS, end];

function base(width, spanS) {
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 24, 0, 0],
    cursor: { drag: { x: false, y: false }, points: { size: 6 }, y: false },
    scales: { x: { time: true, range: (_plot, _min, max) => lastSeconds(max ?? Date.now() / 1000, spanS) } },
  };
}

export function shareOptions(width, regions, spanS) {
  const options = base(width, spanS);
  options.scales.y = { range: [0, 100] };
  options.axes = [timeAxis(), axisOf({ values: (_p, splits) => splits.map((v) => `${v} %`), size: 48, space: 36 })];
  options.series = [{}];
  // Drawn from the whole down, each over the one before: the top edge of a band is its cumulated share.
  for (let index = regions.length - 1; index >= 0; index -= 1) {
    const paint = colour(`--region-${(index % 6) + 1}`);
    options.series.push({
      label: regions[index], fill: paint, stroke: colour('--surface'), width: 1, points: { show: false },
      paths: window.uPlot.paths.stepped({ align: 1 }),
    });
  }
  return options;
}

export function shareData(series, regions) {
  const sums = [];
  let below = new Array(series.t.length).fill(0);
  for (const region of regions) {
    const column = series.s[region];
    below = below.map((sum, at) => sum + (column?.[at] ?? 0) / 100);
    sums.push(below);
  }
  return [series.t, ...sums.reverse()];
}

export function rateOptions(width, limitPerSecond, spanS) {
  const options = base(width, spanS);
  const least = limitPerSecond ? limitPerSecond * 1.15 : 1;
  options.scales.y = { range: (_plot, _min, max) => [0, Math.max(least, (max ?? 0) * 1.08)] };
  options.axes = [timeAxis(), axisOf({ size: 48, space: 36 })];
  const line = (label, name, extra) => ({ label, stroke: colour(name), width: 2, points: { show: false }, ...extra });
  options.series = [
    {},
    line('offered', '--offered', { dash: [2, 3], width: 1.5 }),
    line('allowed', '--allowed', { fill: colour('--allowed-fill') }),
    line('denied', '--denied', { dash: [6, 3] }),
    line('limit', '--limit', { width: 1 }),
  ];
  return options;
}

export function rateData(series, limitPerSecond) {
  const offered = series.a.map((allowed, at) => (allowed === null ? null : allowed + (series.d[at] ?? 0)));
  const limit = series.t.map(() => limitPerSecond);
  return [series.t, offered, series.a, series.d, limit];
}

// A chart that can be walked with the arrow keys; onCursor gets the index under the cursor, or null.
export function Chart({ options, data, name, label, syncName, onCursor }) {
  const holder = useRef(null);
  const plot = useRef(null);
  const latest = useRef(data);
  latest.current = data;

  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      const made = options(holder.current.clientWidth || 300);
      made.cursor.sync = { key: syncName };
      made.hooks = { setCursor: [(self) => onCursor(self.cursor.idx ?? null)] };
      plot.current = new window.uPlot(made, latest.current, holder.current);
    };
    make();
    const scheme = window.matchMedia('(prefers-color-scheme: dark)');
    scheme.addEventListener('change', make);
    window.addEventListener('themechange', make);
    const sizes = new ResizeObserver(([entry]) => {
      plot.current.setSize({ width: Math.max(200, entry.contentRect.width), height: HEIGHT });
    });
    sizes.observe(holder.current);
    return () => {
      scheme.removeEventListener('change', make);
      window.removeEventListener('themechange', make);
      sizes.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [name]);

  useEffect(() => {
    plot.current?.setData(data);
  }, [data]);

  const walk = (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 };
    const count = data[0].length;
    if (event.key === 'Escape') plot.current.setCursor({ left: -10, top: -10 });
    if (!(event.key in steps) || count === 0) return;
    event.preventDefault();
    const from = plot.current.cursor.idx ?? count - 1;
    const at = Math.min(count - 1, Math.max(0, from + steps[event.key]));
    plot.current.setCursor({ left: plot.current.valToPos(data[0][at], 'x'), top: 10 });
  };

  return html`<div class="chart" ref=${holder} tabindex="0" role="img" aria-label=${label} onKeyDown=${walk}></div>`;
}
