// Counts by duration, as nodes tell them of their calls. Pure.

// What was added between two: {bounds_s, counts}; `before` null, or of a process that has begun anew: all of `now`.
export function added(before, now) {
  if (!before || before.counts.length !== now.counts.length || before.counts.some((count, at) => count > now.counts[at])) return now;
  return { bounds_s: now.bounds_s, counts: now.counts.map((count, at) => count - before.counts[at]) };
}

export const total = ({ counts }) => counts.reduce((sum, count) => sum + count, 0);

// Several in one; null of none.
export function together(all) {
  if (all.length === 0) return null;
  return { bounds_s: all[0].bounds_s, counts: all[0].counts.map((_count, at) => all.reduce((sum, one) => sum + (one.counts[at] ?? 0), 0)) };
}

// The bound in ms below which `part` of them are; null of none, Infinity beyond the last bound.
export function boundOf(histogram, part) {
  const whole = total(histogram);
  if (whole === 0) return null;
  let sum = 0;
  for (let at = 0; at < histogram.counts.length; at += 1) {
    sum += histogram.counts[at];
    if (sum >= part * whole) return at < histogram.bounds_s.length ? histogram.bounds_s[at] * 1000 : Infinity;
  }
  return Infinity;
}
