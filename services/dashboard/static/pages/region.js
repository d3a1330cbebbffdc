// One region: its link, its nodes and stores, and what it still holds.

import { html } from '../vendor/htm-preact-standalone.module.js';
import { Card, Facts, Link } from '../components.js';
import { duration, NOT_KNOWN, rate } from '../format.js';

export default function Region({ feed, route }) {
  const { status } = feed;
  if (!status) return html`<h1>Region</h1><p class="empty" role="status">Waiting for the first data…</p>`;
  const name = route.query.name ?? status.regions[0]?.name;
  const region = status.regions.find((one) => one.name === name);
  return html`
    <div class="page-head"><h1>Region ${name}</h1>
      <label class="pick">Region <select value=${name} onChange=${(event) => route.set({ name: event.target.value }, { push: true })}>
        ${status.regions.map((one) => html`<option value=${one.name}>${one.name}</option>`)}</select></label></div>
    ${!region && html`<p class="empty">No region is called ${name}.</p>`}
    ${region && html`<${Card} title="Now" aside=${html`<${Link} region=${region} />`}><${Facts} kind="grid" rows=${[
      ['allowed', rate(region.allowed_per_s)], ['denied', rate(region.denied_per_s)],
      ['Redis', `${region.points.ok ?? NOT_KNOWN} of ${region.points.total}`], ['nodes', `${region.nodes.ready ?? NOT_KNOWN} of ${region.nodes.total ?? NOT_KNOWN}`],
      ['session left', duration(region.session_left_ms)], ['consent left', duration(region.consent_left_ms)],
      ['decided without Redis', rate(region.without_redis_per_s)], ['decided at the floor', rate(region.at_floor_per_s)],
    ]} /><//>`}`;
}
