/**
 * Keys: all of them in one list, which `?` shows.
 * @module
 */
import { show } from './dialogs.js';
import { h } from './dom.js';

/** @typedef {{ keys: string, says: string, does: () => void }} Shortcut */

/** @param {Shortcut[]} shortcuts */
export function listen(shortcuts) {
  const all = [...shortcuts, { keys: '?', says: 'Show these keys', does: () => list(all) }];
  document.addEventListener('keydown', (event) => {
    if (document.querySelector('dialog[open]')) return;
    const isTyping = /** @type {Element} */ (event.target).matches('input, textarea, select');
    if (event.defaultPrevented || (isTyping && !event.altKey && event.key !== 'Escape')) return;
    const found = all.find((each) => each.keys === nameOf(event));
    if (!found) return;
    event.preventDefault();
    found.does();
  });
}

/** As the list has it. @param {KeyboardEvent} event */
function nameOf(event) {
  if (event.ctrlKey || event.metaKey) return '';
  const key = event.altKey ? event.code.replace(/^(Key|Digit)/, '') : event.key;
  return event.altKey ? `Alt+${key}` : key;
}

/** @param {Shortcut[]} all */
function list(all) {
  const rows = all.map((each) => h('tr', {}, h('th', { scope: 'row' }, h('kbd', {}, each.keys)), h('td', {}, each.says)));
  const inside = [
    ['Enter', 'Send; Shift+Enter begins a line'],
    ['Arrows', 'Inside an answer: from token to token, down to what else was likely'],
  ].map(([keys, says]) => h('tr', {}, h('th', { scope: 'row' }, h('kbd', {}, keys)), h('td', {}, says)));
  show('Keys', h('table', { class: 'keys' }, h('tbody', {}, rows, inside)));
}
