// What pages are drawn with: preact, its hooks, and templates instead of a build step.

import { h } from './vendor/preact.js';
import htm from './vendor/htm.js';

export { render } from './vendor/preact.js';
export * from './vendor/preact-hooks.js';
export const html = htm.bind(h);
