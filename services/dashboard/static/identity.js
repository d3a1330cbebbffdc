// Who asks and what for, as two pages ask it: their form, and its place in the address.

import { html, useState } from './view.js';
import { Field } from './components.js';

// "tier=free" a line -> [[name, value], …]; lines without "=" are left out.
export const attributesOf = (text) => (text ?? '').split('\n').map((line) => line.trim()).filter((line) => line.indexOf('=') > 0)
  .map((line) => [line.slice(0, line.indexOf('=')).trim(), line.slice(line.indexOf('=') + 1).trim()]);

// `onSubmit(fields)` gets client_key, resource, domain, cost and attributes as texts; `children`: more fields.
export function IdentityForm({ query, label, onSubmit, children, busy = false }) {
  const [fields, setFields] = useState({ domain: 'default', cost: '1', client_key: '', resource: '', attributes: '', ...query });
  const input = (name, more = {}) => html`<input value=${fields[name]} autocomplete="off" spellcheck=${false} ...${more}
    onInput=${(event) => setFields({ ...fields, [name]: event.target.value })} />`;
  const submit = (event) => {
    event.preventDefault();
    onSubmit(fields);
  };
  return html`<form class="stack" onSubmit=${submit}>
    <div class="fields">
      <${Field} label="Client key">${input('client_key', { required: true, maxlength: 1024, placeholder: 'acme' })}<//>
      <${Field} label="Resource">${input('resource', { required: true, maxlength: 1024, placeholder: 'POST /orders' })}<//>
      <${Field} label="Domain">${input('domain', { required: true, pattern: '[a-z0-9._\\-]{1,64}' })}<//>
      <${Field} label="Cost">${input('cost', { required: true, type: 'number', min: 0, max: 1_000_000_000 })}<//>
      ${children}
    </div>
    <details open=${fields.attributes !== ''}><summary>Attributes</summary>
      <label class="field"><span>One a line <small>tier=free</small></span><textarea class="short" value=${fields.attributes} spellcheck=${false}
        onInput=${(event) => setFields({ ...fields, attributes: event.target.value })}></textarea></label></details>
    <div class="actions"><button class="primary" disabled=${busy}>${label}</button></div></form>`;
}
