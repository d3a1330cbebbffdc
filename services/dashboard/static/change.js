// A change in two presses: first what it will do, then the change itself, exactly as it was tried.

import { html, useState } from './view.js';
import { Badge, Field, Problem } from './components.js';
import { useSession } from './control.js';
import { headersOf } from './change_headers.js';
import { clock } from './format.js';

// `send({dryRun, headers})` asks the control API; `signature` is the text of what is sent: once it is another, what
// was tried counts no more. `onDone(answer)` after the change; true: it tells of it itself.
export function ChangeFlow({ send, signature, domain, label, onDone, openSignIn, danger = false, ready = true }) {
  const session = useSession();
  const [reason, setReason] = useState('');
  const [tried, setTried] = useState(null); // {signature, answer}
  const [made, setMade] = useState(null);
  const [busy, setBusy] = useState(false);
  const may = session.may('operator', domain);
  const current = tried?.signature === signature ? tried.answer : null;

  const run = async (dryRun) => {
    setBusy(true);
    setMade(null);
    const answer = { at_ms: Date.now(), ...await send({ dryRun, headers: dryRun ? {} : headersOf(current, reason) }) };
    setBusy(false);
    if (dryRun) setTried({ signature, answer });
    else {
      const isTold = answer.ok && onDone?.(answer) === true;
      setMade(isTold ? null : answer);
      if (answer.ok) {
        setTried(null);
        setReason('');
      }
    }
  };

  return html`<div class="change">
    <div class="actions"><button type="button" disabled=${busy || !ready} onClick=${() => run(true)}>See what it will do</button>
      ${busy && html`<span class="quiet" role="status">Asking…</span>`}</div>
    <${Problem} answer=${current} openSignIn=${openSignIn} />
    ${current?.ok && html`<div class="tried" role="status"><h3>What it will do</h3><${Effect} effect=${current.body.effect} />
      ${!current.body.effect.nothing && (may
        ? html`<div class="fields"><${Field} label="Why" hint="stands in the audit"><input value=${reason} maxlength="200"
              onInput=${(event) => setReason(event.target.value)} /><//></div>
            <div class="actions"><button type="button" class=${danger ? 'danger' : 'primary'} disabled=${busy} onClick=${() => run(false)}>${label}</button></div>`
        : html`<p class="quiet">To make it needs the role operator in domain ${domain}.
            ${' '}<button type="button" onClick=${openSignIn}>Sign in</button></p>`)}</div>`}
    <${Problem} answer=${made} openSignIn=${openSignIn} />
    <${Accepted} made=${made} />
  </div>`;
}

// After a change; null: none was made.
export const Accepted = ({ made }) => made?.ok && html`<p class="sentence good" role="status"><b aria-hidden="true">✓</b>
  <span>Accepted${made.body.version ? ` as version ${made.body.version}` : ''} at ${clock(made.at_ms)}; every node uses it within two seconds.</span></p>`;

const EFFECTS = { appear: ['good', 'appears'], change: ['warn', 'changes'], vanish: ['bad', 'vanishes'] };

// What a change, or the way between two versions, comes to.
export function Effect({ effect }) {
  if (effect.nothing) return html`<p class="empty">Nothing: it is so already.</p>`;
  return html`<ul class="effects">
    ${effect.rules.map((one) => html`<li key=${one.rule}><${EffectHead} one=${one} name=${one.rule} />
      ${one.keeps_counts === false && html`<p class="quiet">What was used is forgotten${one.why_not ? `: ${one.why_not}` : ''}.</p>`}
      ${one.note && html`<p class="quiet">Note: ${one.note}.</p>`}
      ${one.fields && html`<${Fields} fields=${one.fields} />`}</li>`)}
    ${(effect.overrides ?? []).map((one) => html`<li><${EffectHead} one=${one} name=${`override of ${one.rule} for ${named(one.key)}`} />
      ${one.until_ms && html`<p class="quiet">until ${new Date(one.until_ms).toLocaleString('en-GB')}</p>`}</li>`)}
    ${Object.keys(effect.set ?? {}).length > 0 && html`<li><b>of the set</b><${Fields} fields=${effect.set} /></li>`}
  </ul>`;
}

function EffectHead({ one, name }) {
  const [level, word] = EFFECTS[one.effect] ?? ['info', one.effect];
  return html`<p><${Badge} level=${level}>${word}<//> <b>${name}</b>${one.in_words && html` <span class="quiet">${one.in_words}</span>`}</p>`;
}

export const named = (key) => Object.entries(key ?? {}).map(([name, value]) => `${name}=${value}`).join(', ') || 'all';

const SHOWN_LETTERS = 160;
const UNREAD = new Set(['level']); // numbers of the machine, which follow from the others

function Fields({ fields }) {
  const rows = Object.entries(fields).filter(([name, change]) => !UNREAD.has(name) && change && typeof change === 'object');
  return html`<div class="scroll"><table class="before-after"><thead><tr><th scope="col">field</th><th scope="col" class="text">before</th>
    <th scope="col" class="text">after</th></tr></thead><tbody>${rows.map(([name, { before, after }]) => html`<tr><th scope="row">${name}</th>
      <td class="text before">${short(before)}</td><td class="text after">${short(after)}</td></tr>`)}</tbody></table></div>`;
}

function short(value) {
  if (value === null || value === undefined || value === '') return '–';
  const text = typeof value === 'string' ? value : JSON.stringify(value).replaceAll('"', '').replaceAll(',', ', ').replaceAll(':', ': ');
  return text.length > SHOWN_LETTERS ? `${text.slice(0, SHOWN_LETTERS)}…` : text;
}
