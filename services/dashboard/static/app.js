import { html, render } from './view.js';
import { Feed } from './feed.js';
import { Shell } from './shell.js';

const root = document.getElementById('app');
const feed = new Feed();
root.replaceChildren();
render(html`<${Shell} feed=${feed} />`, root);
