// Checks by hand: what a caller would be answered, with its headers.

import { html, useState } from '../view.js';
import { Badge, Card, Field, Problem } from '../components.js';
import { ask, useSession } from '../control.js';
import { duration, known, number, percent } from '../format.js';
import { attributesOf, IdentityForm } from '../identity.js';

const KEPT = 50;
const TIMES_MOST = 20;
let answers = 0; // each has a number: pages over http have no random names

export default function Try({ feed, route, openSignIn }) {
  const session = useSession();
  const [region, setRegion] = useState(route.query.region ?? '');
  const [times, setTimes] = useState('1');
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState(null);
  const [rounds, setRounds] = useState([]);
  const chosen = region || feed.regions[0] || '';
  const may = session.may('operator', route.query.domain || 'default');

  const send = async (fields) => {
    route.set({ ...fields, region: chosen });
    setBusy(true);
    const attributes = Object.fromEntries(attributesOf(fields.attributes));
    const check = { client_key: fields.client_key, resource: fields.resource, cost: Number(fields.cost), ...(Object.keys(attributes).length > 0 ? { attributes } : {}) };
    const answer = await ask('v1/try', { method: 'POST', query: { domain: fields.domain }, body: JSON.stringify({ region: chosen, times: Number(times), check }) });
    setBusy(false);
    setFailed(answer.ok ? null : answer);
    if (answer.ok) setRounds([...answer.body.answers.map((one) => ({ ...one, region: chosen, id: (answers += 1) })).reverse(), ...rounds].slice(0, KEPT));
  };

  return html`<h1>Try it</h1>
    <${Card} title="Send checks">
      <p class="quiet">Real checks to a real node: what they are allowed is charged, as anybody's is. Needs the role operator.
        ${!may && html` <button type="button" onClick=${openSignIn}>Sign in</button>`}</p>
      <${IdentityForm} query=${route.query} label=${Number(times) > 1 ? `Send ${times} checks` : 'Send the check'} onSubmit=${send} busy=${busy}>
        <${Field} label="Region"><select value=${chosen} onChange=${(event) => setRegion(event.target.value)}>${feed.regions.map((name) => html`<option value=${name}>${name}</option>`)}</select><//>
        <${Field} label="Times" hint=${`1 to ${TIMES_MOST}`}><input type="number" min="1" max=${TIMES_MOST} required value=${times} onInput=${(event) => setTimes(event.target.value)} /><//>
      <//>
    <//>
    <${Problem} answer=${failed} openSignIn=${openSignIn} />
    ${rounds.length > 0 && html`<${Card} title="Answers, the newest first" aside=${html`<button type="button" onClick=${() => setRounds([])}>Clear</button>`}>
      <p role="status">${number(rounds.filter((one) => one.body?.allowed === true).length)} allowed, ${number(rounds.filter((one) => one.body?.allowed === false).length)} denied</p>
      <ul class="audit">${rounds.map((one, index) => html`<${Answer} key=${one.id} one=${one} open=${index === 0} />`)}</ul><//>`}`;
}

function Answer({ one, open }) {
  const { body, status } = one;
  const allowed = body?.allowed;
  return html`<li><details open=${open}><summary><${Badge} level=${allowed === true ? 'good' : allowed === false ? 'bad' : 'warn'}>${allowed === true ? 'allowed' : allowed === false ? 'denied' : `status ${status}`}<//>
      <span class="what">${body?.rule && html`by <b>${body.rule}</b>`}${known(body?.remaining) && html`, ${number(body.remaining)} of ${number(body.limit)} left`}
        ${allowed === false && known(body.retry_after_ms) && html`, again in ${duration(body.retry_after_ms)}`}
        <span class="under">${one.region}, ${one.node} · HTTP ${status} · ${number(one.took_ms)} ms${body?.degraded ? ' · without Redis' : ''}${known(body?.verdicts?.[0]?.share_units) ? ` · share ${percent(body.verdicts[0].share_units)}` : ''}</span></span></summary>
      <div class="columns even"><div><h3>Headers</h3><div class="scroll"><table><tbody>${one.headers.map(([name, value]) => html`<tr><th scope="row">${name}</th><td class="text"><code>${value}</code></td></tr>`)}</tbody></table></div></div>
        <div><h3>Answer</h3><pre class="block" tabindex="0">${JSON.stringify(body, null, 2)}</pre></div></div></details></li>`;
}
