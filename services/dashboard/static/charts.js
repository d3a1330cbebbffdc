// A chart on uPlot: its colours from the style sheet, its width from the page, its cursor from mouse and keyboard.

import { html, useEffect, useRef } from './view.js';

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

export const axisOf = (extra) => ({
  stroke: colour('--quiet'),
  grid: { stroke: colour('--grid'), width: 1 },
  ticks: { show: false },
  font: '11px system-ui, sans-serif',
  ...extra,
});

// A chart that can be walked with the arrow keys; onCursor gets the index under the cursor, or null.
export function Chart({ options, data, name, label, syncName, onCursor, height = HEIGHT }) {
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
      plot.current.setSize({ width: Math.max(200, entry.contentRect.width), height });
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

  return html`<div class="chart" style=${`min-height: ${height}px`} ref=${holder} tabindex="0" role="img" aria-label=${label} onKeyDown=${walk}></div>`;
}
