// Who changed what, when, from where and why: accepted and refused.

import { html, useState } from '../view.js';
import { Badge, Card, Field, Problem, Segments } from '../components.js';
import { useAnswer } from '../control.js';
import { WORDS, wordsOf } from '../changes.js';
import { known, when } from '../format.js';
import { hrefOf } from '../router.js';

const PAGE = 50;
const OUTCOMES = [['', 'all'], ['true', 'accepted'], ['false', 'refused']];
const SPANS = [['', 'ever'], ['1', 'an hour'], ['24', 'a day'], ['168', 'a week'], ['720', 'a month']];

export default function Audit({ route, openSignIn }) {
  const { query } = route;
  const [now] = useState(() => Date.now());
  const asked = {
    text: query.text, author: query.author, kind: query.kind, domain: query.domain, accepted: query.accepted, before: query.before,
    since_ms: query.hours ? now - Number(query.hours) * 3_600_000 : null, limit: PAGE,
  };
  const [answer, again] = useAnswer('history', asked, [JSON.stringify(asked)]);
  const set = (changes) => route.set({ before: null, ...changes });
  const input = (name, type = 'text') => html`<input type=${type} value=${query[name] ?? ''} autocomplete="off" onChange=${(event) => set({ [name]: event.target.value.trim() })} />`;
  return html`<div class="page-head"><h1>Audit</h1><button type="button" onClick=${again}>Read again</button></div>
    <${Card}><div class="fields">
      <${Field} label="Has the words" hint="in author, reason, origin or rule">${input('text', 'search')}<//>
      <${Field} label="Author">${input('author')}<//>
      <${Field} label="Domain">${input('domain')}<//>
      <${Field} label="What"><select value=${query.kind ?? ''} onChange=${(event) => set({ kind: event.target.value })}><option value="">anything</option>
        ${Object.entries(WORDS).map(([kind, words]) => html`<option value=${kind}>${words}</option>`)}</select><//>
      <${Field} label="Since"><select value=${query.hours ?? ''} onChange=${(event) => set({ hours: event.target.value })}>${SPANS.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select><//>
      <div><${Segments} label="Outcome" options=${OUTCOMES} value=${query.accepted ?? ''} onPick=${(value) => set({ accepted: value })} /></div>
    </div><//>
    ${answer === null && html`<p class="empty" role="status">Asking…</p>`}
    <${Problem} answer=${answer} openSignIn=${openSignIn} />
    ${answer?.ok && html`<${Card} title="Changes, the newest first">
      ${answer.body.changes.length === 0 && html`<p class="empty">No change is like this.</p>`}
      <ul class="audit">${answer.body.changes.map((one) => html`<${Entry} key=${one.offset} one=${one} openSignIn=${openSignIn} />`)}</ul>
      ${known(answer.body.next) && html`<button type="button" class="more" onClick=${() => route.set({ before: answer.body.next }, { push: true })}>Older</button>`}
      ${query.before && html` <button type="button" class="more" onClick=${() => route.set({ before: null })}>Back to the newest</button>`}<//>`}`;
}

function Entry({ one, openSignIn }) {
  const [open, setOpen] = useState(false);
  return html`<li><details onToggle=${(event) => setOpen(event.target.open)}><summary>
      <time datetime=${new Date(one.at_ms).toISOString()}>${when(one.at_ms)}</time>
      <span class="what">${wordsOf(one)}${one.rule_id && html` <b>${one.rule_id}</b>`}${one.token && html` <b>${one.token.name}</b> (${one.token.role})`}
        ${' '}${one.accepted ? one.domain && html`<span class="quiet">${one.domain}, version ${one.version}</span>` : html`<${Badge} level="bad">${one.conflict ? 'refused: somebody was first' : 'refused'}<//>`}
        <span class="under">${one.author}${one.origin && ` from ${one.origin}`}${one.reason && ` · ${one.reason}`}</span></span></summary>
      ${open && html`<${Said} one=${one} openSignIn=${openSignIn} />`}</details></li>`;
}

function Said({ one, openSignIn }) {
  const [answer] = useAnswer(`history/${one.offset}`, {}, [one.offset]);
  return html`<div class="said">
    ${one.errors.length > 0 && html`<ul class="bad">${one.errors.map((fault) => html`<li><code>${fault.field}</code> ${fault.problem}</li>`)}</ul>`}
    ${one.accepted && one.version > 1 && one.domain && html`<p class="link-line"><a href=${hrefOf('rules', { view: 'versions', domain: one.domain, from: one.version - 1, to: one.version })}>What it did to the rules</a></p>`}
    <${Problem} answer=${answer} openSignIn=${openSignIn} />
    ${answer?.ok && Object.keys(answer.body.change).length > 0 && html`<pre class="block" tabindex="0">${JSON.stringify(answer.body.change, null, 2)}</pre>`}</div>`;
}
