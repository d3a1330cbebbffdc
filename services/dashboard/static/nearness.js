// How near limits are. Pure.

import { known } from './format.js';

const LEAST_S = 10;
const MOST_S = 300;

// Over how long asking is averaged: a token bucket over some seconds, a window over its own length.
export const averagedOver = (rule) => Math.min(MOST_S, Math.max(LEAST_S, rule.window_s ?? 0));

// The key of a rule that asks for most: {key, per_s}, allowed and denied cost per second; null: none lately.
export function busiest(entry) {
  let most = null;
  for (const [key, point] of entry?.keys ?? []) {
    if (known(point.a) && (most === null || point.a + (point.d ?? 0) > most.per_s)) most = { key, per_s: point.a + (point.d ?? 0) };
  }
  return most;
}

// {key, per_s, seconds} after one more second; of the first seconds it is their plain mean, but of a window, which
// is not used up by one busy second, always over the whole.
export function averaged(before, now, rule) {
  const seconds = rule.window_s ? averagedOver(rule) : Math.min(averagedOver(rule), (before?.seconds ?? 0) + 1);
  const per_s = before?.per_s ?? 0;
  return { key: now?.key ?? before.key, per_s: per_s + ((now?.per_s ?? 0) - per_s) / seconds, seconds };
}

// The same of a rule without windows from a key's past, whose columns have one entry a second.
export function averagedPast(key, series, rule) {
  const past = series.a.map((allowed, at) => (known(allowed) ? allowed + (series.d[at] ?? 0) : null)).filter(known).slice(-averagedOver(rule));
  const seconds = past.length;
  return seconds > 0 ? { key, per_s: past.reduce((sum, one) => sum + one, 0) / seconds, seconds } : undefined;
}

// Global rules as {rule, near, key, allowed, denied}, the nearest to their limit first, then the busiest. `near`: what
// its busiest key asks for by what the limit lets through for ever; above 1 some of it is denied. `asked`: rule name ->
// {key, per_s}.
export function quotasByNearness(rules, points, asked) {
  const rows = rules
    .filter((rule) => rule.scope === 'global')
    .map((rule) => {
      const { total } = points[rule.name] ?? { total: { a: null, d: null } };
      const most = asked.get(rule.name) ?? null;
      const near = most !== null && rule.even_per_s > 0 ? most.per_s / rule.even_per_s : null;
      return { rule, near, key: most?.key ?? null, allowed: total.a, denied: total.d };
    });
  return rows.sort((one, other) => {
    const asked = (row) => (row.allowed ?? 0) + (row.denied ?? 0);
    return (other.near ?? -1) - (one.near ?? -1) || asked(other) - asked(one) || (one.rule.name < other.rule.name ? -1 : 1);
  });
}

export const levelOf = (near) => (!known(near) ? '' : near >= 1 ? 'bad' : near >= 0.8 ? 'warn' : '');
