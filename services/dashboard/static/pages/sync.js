// The leader, and what it holds together.

import { html } from '../vendor/htm-preact-standalone.module.js';
import { Card, Facts, Link, RegionName } from '../components.js';
import { duration, NOT_KNOWN } from '../format.js';

export default function Sync({ feed }) {
  const { status } = feed;
  if (!status) return html`<h1>Sync</h1><p class="empty" role="status">Waiting for the first data…</p>`;
  const { leader } = status;
  return html`<h1>Sync</h1>
    <${Card} title="Leader"><${Facts} rows=${[
      ['region', leader.region], ['epoch', leader.epoch ?? NOT_KNOWN],
      ['last beat', `${duration(leader.beat_age_ms)} ago`, leader.late ? 'bad' : ''], ['read lag', duration(leader.lag_ms)],
    ]} /><//>
    <${Card} title="Sessions and consents"><div class="scroll" tabindex="0"><table><thead><tr><th scope="col">region</th><th scope="col">link</th>
      <th scope="col">session left</th><th scope="col">consent left</th></tr></thead><tbody>${status.regions.map(
        (region, index) => html`<tr key=${region.name}><th scope="row"><${RegionName} name=${region.name} index=${index} /></th>
          <td><${Link} region=${region} /></td><td>${duration(region.session_left_ms)}</td><td>${duration(region.consent_left_ms)}</td></tr>`,
      )}</tbody></table></div><//>`;
}
