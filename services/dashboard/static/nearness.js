// How near limits are. Pure.

import { known } from './format.js';

// Global rules as {rule, near, key, allowed, denied}, the nearest to their limit first, then the busiest. `near`: what
// its busiest key asks for, on average, by what the limit lets through for ever; above 1 some of it is denied.
export function quotasByNearness(rules, points) {
  const rows = rules
    .filter((rule) => rule.scope === 'global')
    .map((rule) => {
      const { total, asked } = points[rule.name] ?? { total: { a: null, d: null } };
      const [key, perS] = asked ?? [null, null];
      const near = asked && rule.even_per_s > 0 ? perS / rule.even_per_s : null;
      return { rule, near, key, allowed: total.a, denied: total.d };
    });
  return rows.sort((one, other) => {
    const asked = (row) => (row.allowed ?? 0) + (row.denied ?? 0);
    return (other.near ?? -1) - (one.near ?? -1) || asked(other) - asked(one) || (one.rule.name < other.rule.name ? -1 : 1);
  });
}

export const levelOf = (near) => (!known(near) ? '' : near >= 1 ? 'bad' : near >= 0.8 ? 'warn' : '');
