// One event stream per tab. Keeps what pages show: the newest status, the rules, and the last minute of each region's rates.

const SILENCE_MS = 5000;
const KEPT_TRAIL = 60;

export class Feed {
  constructor() {
    this.listeners = new Set();
    this.status = null;
    this.rules = [];
    this.bases = {}; // domain -> region -> base
    this.regions = [];
    this.points = {};
    this.trails = new Map(); // region -> {allowed: [], denied: []}, one a second
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
    this.stream.addEventListener('hello', (event) => this.take(JSON.parse(event.data)));
    this.stream.addEventListener('tick', (event) => this.take(JSON.parse(event.data)));
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

  take(frame) {
    this.connected = true;
    this.lastHeardMs = Date.now();
    if (frame.rules) [this.rules, this.bases] = [frame.rules, frame.bases];
    this.status = frame.status;
    const names = frame.status.regions.map((region) => region.name);
    if (names.join() !== this.regions.join()) this.regions = names; // the same list while it says the same
    this.points = frame.points;
    for (const region of frame.status.regions) this.trail(region);
    for (const name of this.trails.keys()) if (!this.regions.includes(name)) this.trails.delete(name);
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
}
