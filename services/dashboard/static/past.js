// Questions to what the dashboard remembers: asked again every so often, the last answer kept while one is under way.

import { useEffect, useState } from './view.js';

const PATIENCE_MS = 10_000;

export const pathOf = (path, query) => {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== '');
  return `v1/${path}?${new URLSearchParams(given)}`;
};

export async function ask(path, signal) {
  const limit = AbortSignal.timeout(PATIENCE_MS);
  const answer = await fetch(path, { signal: signal ? AbortSignal.any([signal, limit]) : limit });
  if (answer.ok) return answer.json();
  const problem = await answer.json().catch(() => ({}));
  throw new Error(problem.detail ?? `the dashboard answered ${answer.status}`);
}

// {data, problem}: `path()` is asked now and every `everyMs` (0: once); null asks nothing. What `of` names is one
// view: when it changes, what was shown of the other is gone.
export function usePast(path, of, everyMs = 0) {
  const [state, setState] = useState({ of: null, data: null, problem: null });
  useEffect(() => {
    const stop = new AbortController();
    let timer = null;
    const turn = async () => {
      const where = path();
      if (where !== null && !(document.hidden && everyMs > 0)) {
        try {
          const data = await ask(where, stop.signal);
          if (!stop.signal.aborted) setState({ of, data, problem: null });
        } catch (error) {
          if (!stop.signal.aborted) setState((known) => ({ of, data: known.of === of ? known.data : null, problem: error.message }));
        }
      }
      if (everyMs > 0 && !stop.signal.aborted) timer = setTimeout(turn, everyMs);
    };
    turn();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [of, everyMs]);
  return state.of === of ? state : { data: null, problem: null };
}
