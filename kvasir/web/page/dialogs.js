/**
 * Windows above the page: one at a time, closed by Escape, focus goes back to where it was.
 * @module
 */
import { find, h } from './dom.js';

/** @param {string} title @param {...import('./dom.js').Child} children @returns {HTMLDialogElement} */
export function show(title, ...children) {
  find('dialog')?.close();
  const close = h('button', { type: 'button', class: 'quiet close', 'aria-label': 'Close', onclick: () => dialog.close() }, '×');
  const dialog = h('dialog', { 'aria-label': title, onclose: () => dialog.remove() }, h('header', {}, h('h2', {}, title), close), children);
  dialog.addEventListener('click', (/** @type {Event} */ event) => event.target === dialog && dialog.close());
  document.body.appendChild(dialog);
  dialog.showModal();
  return dialog;
}

/** To the clipboard, also where a page is not served over TLS. @param {string} text */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h('textarea', { class: 'unseen', 'aria-hidden': 'true' }, text);
  (find('dialog') ?? document.body).appendChild(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

/**
 * A sentence at the foot of the page for some seconds, with something that can still be done.
 * @param {string} sentence @param {string} [label] @param {() => void} [act]
 */
export function toast(sentence, label, act) {
  find('.toast')?.remove();
  const button = label && act ? h('button', { type: 'button', onclick: () => { node.remove(); act(); } }, label) : null;
  const node = h('div', { class: 'toast', role: 'status' }, sentence, button);
  document.body.appendChild(node);
  setTimeout(() => node.remove(), button ? 12000 : 4000);
}
