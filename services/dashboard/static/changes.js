// What happened lately; and what changes are called.

import { html, useEffect, useState } from './view.js';
import { clock, known } from './format.js';

const LOOK_EVERY_MS = 5_000;
const SHOWN_MOST = 12;
const HOUR_MS = 3_600_000;

export const WORDS = {
  put_rule: 'rule changed', delete_rule: 'rule removed', put_set: 'rule set replaced',
  put_override: 'override made', delete_override: 'override ended', end_overrides: 'override ran out',
  put_subjects: 'subjects changed', delete_subjects: 'subjects removed', put_regions: 'weights of regions changed', region_destroyed: 'region said to be destroyed', put_token: 'token made', revoke_token: 'token revoked',
};
export const wordsOf = (change) => (known(change.restores) ? `went back to version ${change.restores}` : WORDS[change.kind]) ?? change.kind.replaceAll('_', ' ');

// The last hour as the dashboard itself noticed it: regions, leaders, rules, overrides.
export function Changes() {
  const incidents = useIncidents();
  if (incidents === null) return html`<p class="empty" role="status">Asking…</p>`;
  if (incidents.length === 0) return html`<p class="empty">Nothing: no region, leader, rule or override.</p>`;
  return html`<ul class="changes">${incidents.slice(0, SHOWN_MOST).map((one) => html`<li key=${one.id}>
    <time datetime=${new Date(one.at_ms).toISOString()}>${clock(one.at_ms)}</time>
    <span class="what"><span class=${one.level}><span aria-hidden="true">${SIGNS[one.level] ?? ''}</span> ${one.text}</span></span></li>`)}</ul>
    ${incidents.length > SHOWN_MOST && html`<p class="quiet">and ${incidents.length - SHOWN_MOST} more</p>`}`;
}

const SIGNS = { warn: '!', bad: '✕', info: '' };

function useIncidents() {
  const [incidents, setIncidents] = useState(null);
  useEffect(() => {
    let wanted = true;
    const look = async () => {
      try {
        const answer = await fetch(`v1/incidents?since=${Date.now() - HOUR_MS}`);
        if (answer.ok && wanted) setIncidents((await answer.json()).incidents);
      } catch {
        // The page says by itself that the dashboard is away.
      }
    };
    look();
    const timer = setInterval(() => document.hidden || look(), LOOK_EVERY_MS);
    return () => {
      wanted = false;
      clearInterval(timer);
    };
  }, []);
  return incidents;
}
