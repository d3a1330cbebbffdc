// What changed lately: changes of rules and overrides, as the control API's history tells them.

import { html, useState } from './vendor/htm-preact-standalone.module.js';
import { Badge, Problem } from './components.js';
import { useAnswer, useSession } from './control.js';
import { clock, known } from './format.js';

const LOOK_EVERY_MS = 10_000;
const HOUR_MS = 3_600_000;

export const WORDS = {
  put_rule: 'rule changed', delete_rule: 'rule removed', put_set: 'rule set replaced',
  put_override: 'override made', delete_override: 'override ended', end_overrides: 'override ran out',
  put_subjects: 'subjects changed', delete_subjects: 'subjects removed', put_token: 'token made', revoke_token: 'token revoked',
};
export const wordsOf = (change) => (known(change.restores) ? `went back to version ${change.restores}` : WORDS[change.kind]) ?? change.kind.replaceAll('_', ' ');

export function Changes({ openSignIn }) {
  const [since] = useState(() => Date.now() - HOUR_MS);
  const { me, away } = useSession();
  const [answer] = useAnswer('history', { since_ms: since, limit: 20 }, [], { every: LOOK_EVERY_MS });
  if (!me && away) return html`<p class="empty">Not known: the control API does not answer.</p>`;
  if (!me) {
    return html`<p class="empty">Who changed what is told to those who are signed in.${' '}
      <button type="button" onClick=${openSignIn}>Sign in</button></p>`;
  }
  if (answer === null) return html`<p class="empty" role="status">Asking…</p>`;
  if (!answer.ok) return html`<${Problem} answer=${answer} openSignIn=${openSignIn} />`;
  const { changes } = answer.body;
  if (changes.length === 0) return html`<p class="empty">Nothing: no rule, override or subject.</p>`;
  return html`<ul class="changes">${changes.map((one) => html`<li key=${one.offset}>
    <time datetime=${new Date(one.at_ms).toISOString()}>${clock(one.at_ms)}</time>
    <span class="what">${wordsOf(one)}${one.rule_id && html` <b>${one.rule_id}</b>`}${!one.accepted && html` <${Badge} level="bad">refused<//>`}
      <span class="under">${one.author}${one.reason && ` · ${one.reason}`}</span></span></li>`)}</ul>`;
}
