// One event stream per tab. Keeps what pages show: the newest status, the rules, five minutes of points of what is
// looked at, and the last minute of each region's rates.

import { averaged, averagedPast, busiest } from './nearness.js';

const KEPT_POINTS = 300;
const SILENCE_MS = 5000;
const KEPT_SERIES = 60;
const STALE_S = 5;
const KEPT_TRAIL = 60;

export const seriesName = (rule, key) => `${rule}\n${key}`;

export class Feed {
  constructor() {
    this.listeners = new Set();
    this.hello = null;
    this.status = null;
    this.rules = [];
    this.regions = [];
    this.points = {};
    this.trails = new Map(); // region -> {allowed: [], denied: []}, one a second
    this.asked = new Map(); // rule -> {key, per_s} of the key that asks for most, averaged
    this.series = new Map(); // rule\nkey -> {t, a, d, s: {region: []}}
    this.loading = new Set();
    this.connected = false;
    this.lastHeardMs = null;
    this.open();
    setInterval(() => this.watch(), 1000);
  }

  // `listener` is called after every change; the answer ends that.
  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  onChange() {
    for (const listener of this.listeners) listener();
  }

  open() {
    this.stream = new EventSource('events');
    this.stream.addEventListener('hello', (event) => this.take(JSON.parse(event.data), true));
    this.stream.addEventListener('tick', (event) => this.take(JSON.parse(event.data), false));
    this.stream.onerror = () => {
      this.connected = false;
      this.onChange();
      // A refused stream (too many tabs) is closed for good by the browser: ask again, slowly.
      if (this.stream.readyState === EventSource.CLOSED) setTimeout(() => this.open(), 5000);
    };
  }

  watch() {
    if (this.connected && Date.now() - this.lastHeardMs > SILENCE_MS) {
      this.connected = false;
      this.onChange();
    }
  }

  take(frame, isHello) {
    this.connected = true;
    this.lastHeardMs = Date.now();
    if (isHello) {
      this.hello = frame;
      this.series.clear();
      for (const [rule, entry] of Object.entries(frame.history)) {
        this.series.set(seriesName(rule, entry.key), entry.series);
      }
    }
    if (frame.rules) this.rules = frame.rules;
    this.status = frame.status;
    this.regions = frame.status.regions.map((region) => region.name);
    this.points = frame.points;
    for (const region of frame.status.regions) this.trail(region);
    if (isHello) this.averagePast(frame);
    else this.average();
    if (!isHello) this.append(frame);
    this.onChange();
  }

  trail(region) {
    let kept = this.trails.get(region.name);
    if (!kept) this.trails.set(region.name, (kept = { allowed: [], denied: [] }));
    kept.allowed.push(region.allowed_per_s);
    kept.denied.push(region.denied_per_s);
    if (kept.allowed.length > KEPT_TRAIL) {
      kept.allowed.shift();
      kept.denied.shift();
    }
  }

  // Of windows the dashboard tells the average itself: it has seen more of them than a past of some minutes tells.
  averagePast({ history, asked = {} }) {
    this.asked.clear();
    for (const rule of this.rules) {
      const past = history[rule.name];
      const average = rule.window_s ? asked[rule.name] : past?.series ? averagedPast(past.key, past.series, rule) : undefined;
      if (average) this.asked.set(rule.name, average);
    }
  }

  average() {
    const names = new Set();
    for (const rule of this.rules) {
      names.add(rule.name);
      const now = busiest(this.points[rule.name]);
      const before = this.asked.get(rule.name);
      if (now !== null || before !== undefined) this.asked.set(rule.name, averaged(before, now, rule));
    }
    for (const name of this.asked.keys()) if (!names.has(name)) this.asked.delete(name);
  }

  append(frame) {
    for (const [rule, entry] of Object.entries(frame.points)) {
      for (const [key, point] of entry.keys) {
        const series = this.series.get(seriesName(rule, key));
        if (series) push(series, frame.status.now_ms, point);
      }
    }
  }

  // The past of a key that was not shown so far; the ticks carry it on from there.
  async want(rule, key) {
    const name = seriesName(rule, key);
    const last = this.series.get(name)?.t.at(-1) ?? 0;
    if (this.loading.has(name) || this.status.now_ms / 1000 - last < STALE_S) return;
    this.loading.add(name);
    try {
      const answer = await fetch(`history?${new URLSearchParams({ rule, key })}`);
      if (answer.ok) {
        this.series.delete(name); // the newest stands last, the oldest makes room
        this.series.set(name, await answer.json());
        if (this.series.size > KEPT_SERIES) this.series.delete(this.series.keys().next().value);
      }
    } finally {
      this.loading.delete(name);
      this.onChange();
    }
  }
}

function push(series, nowMs, point) {
  const last = series.t.length - 1;
  if (last >= 0 && series.t[last] * 1000 >= nowMs) return;
  series.t.push(nowMs / 1000);
  series.a.push(point.a);
  series.d.push(point.d);
  const count = series.t.length;
  for (const [region, share] of Object.entries(point.s)) {
    const column = (series.s[region] ??= new Array(count - 1).fill(null));
    column.push(share);
  }
  for (const column of Object.values(series.s)) {
    while (column.length < count) column.push(null);
  }
  if (count > KEPT_POINTS) {
    for (const column of [series.t, series.a, series.d, ...Object.values(series.s)]) column.shift();
  }
}
