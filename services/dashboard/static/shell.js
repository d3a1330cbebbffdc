// What stands around every page: navigation, how things are, keyboard, colours, who is signed in.

import { html, useEffect, useErrorBoundary, useReducer, useRef, useState } from './view.js';
import { Icon, LiveSign } from './components.js';
import { session, SignInDialog, useSession } from './control.js';
import { clock, duration, NOT_KNOWN } from './format.js';
import { hrefOf, useRoute } from './router.js';

export const PAGES = [
  { name: 'overview', title: 'Overview', key: 'o', load: () => import('./pages/overview.js') },
  { name: 'quota', title: 'Quota', key: 'q', load: () => import('./pages/quota.js') },
  { name: 'region', title: 'Region', key: 'r', load: () => import('./pages/region.js') },
  { name: 'sync', title: 'Sync', key: 's', load: () => import('./pages/sync.js') },
  { name: 'rules', title: 'Rules', key: 'u', load: () => import('./pages/rules.js') },
  { name: 'keys', title: 'Keys', key: 'k', load: () => import('./pages/keys.js') },
  { name: 'audit', title: 'Audit', key: 'a', load: () => import('./pages/audit.js') },
  { name: 'try', title: 'Try it', key: 't', load: () => import('./pages/try.js') },
];
const THEMES = ['auto', 'light', 'dark'];

export function Shell({ feed }) {
  const [, refresh] = useReducer((count) => count + 1, 0);
  useEffect(() => feed.listen(inNextFrame(refresh)), []);
  const route = useRoute('overview');
  const page = PAGES.find((one) => one.name === route.name);
  const [help, setHelp] = useState(false);
  const [signIn, setSignIn] = useState(false);
  useShortcuts(() => setHelp(true));
  useTitle(feed, page);
  useSession();
  return html`
    <a class="skip" href="#content" onClick=${toContent}>Skip to the page</a>
    <${Side} current=${page} feed=${feed} openHelp=${() => setHelp(true)} openSignIn=${() => setSignIn(true)} />
    <main id="content" tabindex="-1">
      <${Lost} feed=${feed} />
      ${session.away && feed.connected && html`<p class="sentence warn away" role="alert"><b aria-hidden="true">!</b> <span>The control API does not
        answer: rules, keys and the audit cannot be read or changed now. What is live goes on. It is asked again by itself.</span></p>`}
      ${feed.status?.mode === 'embedded' && html`<p class="banner">Embedded mode: all regions run in one process, without
        Redis and Kafka. For trying things out, not for production.</p>`}
      ${page
        ? html`<${Page} key=${page.name} page=${page} route=${route} feed=${feed} openSignIn=${() => setSignIn(true)} />`
        : html`<h1>No such page</h1><p class="empty">There is no page <code>${route.name}</code>.
            ${' '}<a href="#/overview">Go to the overview</a></p>`}
    </main>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}
    ${signIn && html`<${SignInDialog} close=${() => setSignIn(false)} />`}`;
}

// Frames are read and drawn in turns of their own, and those that come together are drawn once. A page that nobody sees
// has no next frame, but a title.
function inNextFrame(act) {
  let due = false;
  return () => {
    if (document.hidden) return act();
    if (due) return undefined;
    due = true;
    return requestAnimationFrame(() => {
      due = false;
      act();
    });
  };
}

function toContent(event) {
  event.preventDefault();
  document.getElementById('content').focus();
}

function Page({ page, route, feed, openSignIn }) {
  const [Shown, setShown] = useState(null);
  const [failed, setFailed] = useState(null);
  const [broken, mend] = useErrorBoundary((error) => console.error(error));
  const load = () => {
    setFailed(null);
    page.load().then((module) => setShown(() => module.default), setFailed);
  };
  useEffect(load, []);
  const first = useRef(true);
  useEffect(() => {
    if (Shown && !first.current) document.getElementById('content').focus();
    first.current = false;
  }, [Shown]);
  if (broken) {
    return html`<h1>${page.title}</h1><div class="card problem" role="alert"><h2>This page could not be drawn</h2>
      <p>${String(broken.message ?? broken)}</p><button type="button" onClick=${mend}>Draw it again</button></div>`;
  }
  if (failed) {
    return html`<h1>${page.title}</h1><div class="card problem" role="alert"><h2>This page could not be loaded</h2>
      <p>The dashboard did not send it: ${String(failed.message ?? failed)}</p>
      <button type="button" onClick=${load}>Try again</button></div>`;
  }
  if (!Shown) return html`<h1>${page.title}</h1><p class="empty" role="status">Loading…</p>`;
  return html`<${Shown} route=${route} feed=${feed} openSignIn=${openSignIn} />`;
}

function Side({ current, feed, openHelp, openSignIn }) {
  const leader = feed.status?.leader;
  return html`<header class="side">
    <a class="brand" href="#/overview"><span class="mark" aria-hidden="true"></span>Apportion</a>
    <nav aria-label="Pages"><ul>${PAGES.map(
      (page) => html`<li key=${page.name}><a href=${hrefOf(page.name)} aria-current=${page === current ? 'page' : null}>
        <${Icon} name=${page.name} />${page.title}</a></li>`,
    )}</ul></nav>
    <div class="side-foot">
      <${LiveSign} feed=${feed} />
      ${leader && html`<dl class="side-facts">
        <div><dt>leader</dt><dd>${leader.region ?? NOT_KNOWN}</dd></div>
        <div><dt>last beat</dt><dd class=${leader.late ? 'bad' : ''}>${duration(leader.beat_age_ms)} ago</dd></div>
      </dl>`}
      <${Who} openSignIn=${openSignIn} />
      <div class="side-buttons">
        <${ThemeButton} />
        <button type="button" class="plain" onClick=${openHelp} title="Keyboard (?)"><${Icon} name="keyboard" /><span>Keyboard</span></button>
      </div>
    </div>
  </header>`;
}

function Who({ openSignIn }) {
  const me = session.me;
  if (session.token === null) {
    return html`<button type="button" class="plain" onClick=${openSignIn}><${Icon} name="keys" /><span>Sign in</span></button>`;
  }
  return html`<div class="who"><span title=${me ? `in ${me.domains.join(', ')}` : ''}><${Icon} name="keys" />
    ${me ? html`<b>${me.name}</b> · ${me.role}` : 'token not known'}</span>
    <button type="button" class="plain" onClick=${() => session.signOut()}>Sign out</button></div>`;
}

function ThemeButton() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  const change = () => {
    document.documentElement.dataset.theme = next;
    localStorage.setItem('apportion.theme', next);
    setTheme(next);
    window.dispatchEvent(new Event('themechange'));
  };
  return html`<button type="button" class="plain" onClick=${change} title=${`Colours: ${theme}. Change to ${next}`}>
    <${Icon} name="theme" /><span>Colours: ${theme}</span></button>`;
}

// What was read before is shown on, and said to be old.
function Lost({ feed }) {
  if (feed.connected || feed.lastHeardMs === null) return null;
  return html`<p class="sentence bad lost" role="alert"><b aria-hidden="true">✕</b>
    <span>The dashboard has not been heard since ${clock(feed.lastHeardMs)}; what you see is as of then.
    This page connects again by itself.</span></p>`;
}

function useTitle(feed, page) {
  const wrong = feed.status ? feed.status.sentences.length + (feed.connected ? 0 : 1) : 0;
  const title = `${wrong > 0 ? `(${wrong}) ` : ''}${page?.title ?? 'Not found'} · Apportion`;
  useEffect(() => {
    document.title = title;
  }, [title]);
}

// ---- keyboard: g and a letter goes to a page, / to the search; can be turned off

const OFF = 'apportion.shortcuts-off';
const TOGETHER_MS = 1200;

function useShortcuts(openHelp) {
  useEffect(() => {
    let begun = -TOGETHER_MS;
    const onKey = (event) => {
      const typing = event.target.closest?.('input, textarea, select, [contenteditable], dialog');
      if (typing || event.ctrlKey || event.metaKey || event.altKey || localStorage.getItem(OFF)) return;
      // The keys' own times: a busy page hears them late.
      const page = event.timeStamp - begun < TOGETHER_MS && PAGES.find((one) => one.key === event.key);
      begun = event.key === 'g' ? event.timeStamp : -TOGETHER_MS;
      if (page) location.hash = hrefOf(page.name);
      else if (event.key === '?') openHelp();
      else if (event.key === '/') {
        const search = document.querySelector('main [type=search]');
        if (search) {
          event.preventDefault();
          search.focus();
        }
      }
    };
    document.addEventListener('keydown', onKey);
    return () => document.removeEventListener('keydown', onKey);
  }, []);
}

function Help({ close }) {
  const dialog = useRef(null);
  const [off, setOff] = useState(Boolean(localStorage.getItem(OFF)));
  useEffect(() => dialog.current.showModal(), []);
  const toggle = () => {
    if (off) localStorage.removeItem(OFF);
    else localStorage.setItem(OFF, '1');
    setOff(!off);
  };
  const rows = [
    ...PAGES.map((page) => [['g', page.key], `go to ${page.title}`]),
    [['/'], 'search on this page'],
    [['←', '→'], 'walk along a chart that has the focus; Esc leaves it'],
    [['?'], 'this list'],
  ];
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="help-title">
    <h2 id="help-title">Keyboard</h2>
    <table class="keys-table"><tbody>${rows.map(([keys, what]) => html`<tr><td>${keys.map((key) => html`<kbd>${key}</kbd> `)}</td>
      <td class="text">${what}</td></tr>`)}</tbody></table>
    <label class="check"><input type="checkbox" checked=${!off} onChange=${toggle} /> Single keys act</label>
    <form method="dialog" class="actions"><button class="primary">Close</button></form>
  </dialog>`;
}
