// Addresses behind the #: `#/region?name=eu-west`. A link reproduces the view, and the server needs no routes.

import { useEffect, useState } from './view.js';

export function parseHash(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?', 2);
  return { name: path.split('/')[0], query: Object.fromEntries(new URLSearchParams(query)) };
}

// Values that are null or empty are left out.
export function hrefOf(name, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== '');
  return `#/${name}${given.length > 0 ? `?${new URLSearchParams(given)}` : ''}`;
}

// {name, query, set(changes, {push})}: `set` changes the query of the page that is shown.
export function useRoute(fallback) {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const follow = () => setHash(location.hash);
    window.addEventListener('hashchange', follow);
    return () => window.removeEventListener('hashchange', follow);
  }, []);
  const { name, query } = parseHash(hash);
  const set = (changes, { push = false } = {}) => {
    const now = parseHash(location.hash);
    const href = hrefOf(now.name || fallback, { ...now.query, ...changes });
    history[push ? 'pushState' : 'replaceState'](null, '', href);
    setHash(href);
  };
  return { name: name || fallback, query, set };
}
