import { html, render } from './vendor/htm-preact-standalone.module.js';
import { Feed } from './feed.js';
import { Shell } from './shell.js';

const root = document.getElementById('app');
const feed = new Feed();
root.replaceChildren();
render(html`<${Shell} feed=${feed} />`, root);
