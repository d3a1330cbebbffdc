// One event stream per tab. Keeps what pages show: the newest status, the rules, what was asked of each limit on average,
// and the last minute of each region's rates.

import { averaged, averagedPast, busiest } from './nearness.js';

const SILENCE_MS = 5000;
const KEPT_TRAIL = 60;

export class Feed {
  constructor() {
    this.listeners = new Set();
    this.status = null;
    this.rules = [];
    this.regions = [];
    this.points = {};
    this.trails = new Map(); // region -> {allowed: [], denied: []}, one a second
    this.asked = new Map(); // rule -> {key, per_s} of the key that asks for most, averaged
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
    if (frame.rules) this.rules = frame.rules;
    this.status = frame.status;
    this.regions = frame.status.regions.map((region) => region.name);
    this.points = frame.points;
    for (const region of frame.status.regions) this.trail(region);
    if (isHello) this.averagePast(frame);
    else this.average();
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
}
