// Numbers as people read them. Every function takes null for "not known" and answers "–".

export const NOT_KNOWN = '–';

const grouped = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const oneDigit = new Intl.NumberFormat('en', { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export function number(value) {
  if (!known(value)) return NOT_KNOWN;
  const size = Math.abs(value);
  if (size !== 0 && size < 10 && !Number.isInteger(value)) return oneDigit.format(value);
  if (size >= 1e9) return `${oneDigit.format(value / 1e9)} G`;
  if (size >= 1e6) return `${oneDigit.format(value / 1e6)} M`;
  return grouped.format(value);
}

export const rate = (value) => (known(value) ? `${number(value)}/s` : NOT_KNOWN);

export const percent = (units) => (known(units) ? `${oneDigit.format(units / 100)}\u00a0%` : NOT_KNOWN);

export function duration(ms) {
  if (!known(ms)) return NOT_KNOWN;
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 10_000) return `${oneDigit.format(ms / 1000)} s`;
  if (ms < 120_000) return `${Math.round(ms / 1000)} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  return `${Math.round(ms / 3_600_000)} h`;
}

export function clock(ms) {
  if (!known(ms)) return NOT_KNOWN;
  return new Date(ms).toLocaleTimeString('en-GB', { hour12: false });
}

// Today by its time alone, else with the day.
export function when(ms) {
  if (!known(ms)) return NOT_KNOWN;
  const then = new Date(ms);
  const day = then.toDateString() === new Date().toDateString() ? '' : `${then.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' })} `;
  return `${day}${clock(ms)}`;
}

// rl:{tag}:domain/rule:identity -> identity, readable.
export const keyName = (key) => keyOf(key.replace(/^rl:\{[^}]*\}:[^:]*:/, ''));

// An identity, as it stands in a bucket's key.
export function keyOf(identity) {
  if (identity === '') return 'all requests';
  if (identity.startsWith('#')) return `${identity.slice(0, 9)}…`;
  return identity
    .split(',')
    .map((part) => (part === '!' ? '(none)' : safeDecode(part)))
    .join(' · ');
}

export const isHashed = (key) => /^rl:\{[^}]*\}:[^:]*:#/.test(key);

function safeDecode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
