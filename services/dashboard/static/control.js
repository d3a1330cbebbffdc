// Asking the control API, through the dashboard, as whoever looks at the page.
//
// The token is typed in and kept in this tab alone. It travels as a header that only this page's own scripts can set:
// no other site can make a browser send it.

import { html, useEffect, useReducer, useRef, useState } from './view.js';
import { Field, Problem } from './components.js';

const KEPT = 'apportion.control-token';
const HEADER = 'Apportion-Control-Token';
const OURS = 'Apportion-Dashboard';
const LOOK_EVERY_MS = 5000;

class Session {
  constructor() {
    this.token = sessionStorage.getItem(KEPT);
    this.me = null; // {name, role, domains} of whoever asks; null: not known
    this.why = null; // {status, detail}: why it is not known; null before the first answer
    this.listeners = new Set();
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  told() {
    for (const listener of this.listeners) listener();
  }

  // Answered even when nobody is known, so that looking at the page is no error.
  async refresh() {
    const answer = await ask('whoami');
    const who = answer.ok ? answer.body : { known: false, status: answer.status, detail: answer.problem.detail };
    const before = JSON.stringify([this.me, this.why]);
    this.me = who.known ? who : null;
    this.why = who.known ? null : { status: who.status, detail: who.detail ?? '' };
    if (JSON.stringify([this.me, this.why]) !== before) this.told();
    return who;
  }

  // Who it is, or {known: false, status, detail}; the token is kept only if it is known.
  async signIn(token) {
    const before = this.token;
    this.token = token;
    const who = await this.refresh();
    if (who.known) sessionStorage.setItem(KEPT, token);
    else {
      this.token = before;
      await this.refresh();
    }
    return who;
  }

  signOut() {
    this.token = null;
    sessionStorage.removeItem(KEPT);
    this.refresh();
  }

  // Whether the control API could not be asked at all.
  get away() {
    return this.why !== null && this.why.status !== 401 && this.why.status !== 403;
  }

  may(role, domain) {
    const ranks = ['reader', 'operator', 'admin'];
    const { me } = this;
    return Boolean(me) && ranks.indexOf(me.role) >= ranks.indexOf(role) && (me.domains.includes('*') || me.domains.includes(domain));
  }
}

// {ok, status, body, version} or {ok: false, status, problem}; never throws.
export async function ask(path, { method = 'GET', query = {}, body, headers = {} } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== '');
  const search = given.length > 0 ? `?${new URLSearchParams(given)}` : '';
  const sent = { [OURS]: '1', ...headers };
  if (session.token !== null) sent[HEADER] = session.token;
  if (body !== undefined) sent['Content-Type'] ??= 'application/json';
  try {
    const answer = await fetch(`control/${path}${search}`, { method, headers: sent, body, cache: 'no-store' });
    const text = await answer.text();
    const read = parsed(text);
    if (answer.ok) return { ok: true, status: answer.status, body: read ?? text, etag: answer.headers.get('etag') };
    return { ok: false, status: answer.status, problem: read ?? { title: 'Not understood', detail: text.slice(0, 300) } };
  } catch (error) {
    return { ok: false, status: 0, problem: { title: 'The dashboard does not answer', detail: String(error.message ?? error) } };
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export const session = new Session();
session.refresh();
setInterval(() => document.hidden || session.refresh(), LOOK_EVERY_MS);

// Draws the component again when somebody signs in or out.
export function useSession() {
  const [, refresh] = useReducer((count) => count + 1, 0);
  useEffect(() => session.listen(refresh), []);
  return session;
}

// What `ask` answers, asked again when a dependency or the session changes; `again()` asks at once.
export function useAnswer(path, query, deps, { every } = {}) {
  const [answer, setAnswer] = useState(null);
  const [count, again] = useReducer((before) => before + 1, 0);
  const { token, me, why } = useSession();
  const known = me !== null;
  useEffect(() => {
    let wanted = true;
    const fetchIt = async () => {
      const got = await ask(path, { query });
      if (wanted) setAnswer(got);
    };
    if (path !== null && known) fetchIt();
    const timer = every && path !== null && known ? setInterval(fetchIt, every) : null;
    return () => {
      wanted = false;
      clearInterval(timer);
    };
  }, [...deps, path, token, known, count]);
  // Nobody is asked for what would be refused.
  if (!known) return [why === null ? null : unknownTo(why), again];
  return [answer, again];
}

function unknownTo({ status, detail }) {
  if (status === 401 || status === 403) return { ok: false, status, problem: { title: 'Sign in to see this', detail: 'Rules, keys and the audit are told to those whom the control API knows.' } };
  return { ok: false, status, problem: { title: 'The control API does not answer', detail } };
}

export function SignInDialog({ close }) {
  const dialog = useRef(null);
  const [token, setToken] = useState('');
  const [answer, setAnswer] = useState(null);
  useEffect(() => dialog.current.showModal(), []);
  const submit = async (event) => {
    event.preventDefault();
    const got = await session.signIn(token.trim());
    if (got.known) close();
    else setAnswer({ ok: false, status: got.status, problem: { title: 'This token was not taken', detail: got.detail } });
  };
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="sign-in-title">
    <form onSubmit=${submit}>
      <h2 id="sign-in-title">Sign in</h2>
      <p class="quiet">With a token of the control API: <code>apportion token create</code> makes one. A reader sees rules,
        keys and history; an operator changes them. It is kept in this tab only, and gone when the tab is closed.</p>
      <${Field} label="Token"><input type="password" autocomplete="off" required value=${token}
        onInput=${(event) => setToken(event.target.value)} /><//>
      <${Problem} answer=${answer} />
      <div class="actions"><button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
        <button class="primary">Sign in</button></div>
    </form></dialog>`;
}
