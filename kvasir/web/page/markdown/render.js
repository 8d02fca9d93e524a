/**
 * From nodes of Markdown to nodes of the page: those that stayed the same stay where they are.
 * @module
 */
import { copy as copyText } from '../dialogs.js';
import { arrange, h, isSafe } from '../dom.js';

/** @typedef {import('./blocks.js').Shown} Shown */

/**
 * What a parent shows, beside its elements.
 * @type {WeakMap<Node, { nodes: Shown[], made: Node[] }>}
 */
const SHOWN = new WeakMap();
const MAX_DEPTH = 200;

/** @param {Element} parent @param {Shown[]} nodes @param {number} [depth] */
export function render(parent, nodes, depth = 0) {
  const before = SHOWN.get(parent) ?? { nodes: [], made: [] };
  const made = nodes.map((node, i) => {
    const old = before.nodes[i];
    if (old && (old === node || isSame(old, node))) return before.made[i];
    if (old && grew(before.made[i], old, node, depth)) return before.made[i];
    return create(node, depth);
  });
  arrange(parent, made);
  SHOWN.set(parent, { nodes, made });
}

/** @param {Shown} a @param {Shown} b @returns {boolean} */
function isSame(a, b) {
  if (a.t !== b.t || a.s !== b.s || a.href !== b.href || a.title !== b.title) return false;
  if (a.level !== b.level || a.info !== b.info || a.align !== b.align) return false;
  if (a.isOrdered !== b.isOrdered || a.start !== b.start || a.isHead !== b.isHead) return false;
  const [one, two] = [a.c ?? [], b.c ?? []];
  return one.length === two.length && one.every((each, i) => each === two[i] || isSame(each, two[i]));
}

/** Brings what shows `old` to `node`, where only what is inside differs.
 * @param {any} made @param {Shown} old @param {Shown} node @param {number} depth */
function grew(made, old, node, depth) {
  if (old.t !== node.t) return false;
  if (node.t === 'text') {
    made.data = node.s;
    return true;
  }
  if (node.t === 'code' && node.info !== undefined && old.info === node.info) {
    made.lastChild.firstChild.firstChild.data = node.s;
    return true;
  }
  const isOther = old.level !== node.level || old.isOrdered !== node.isOrdered || old.start !== node.start;
  if (!node.c || !old.c || isOther || !PLAIN.has(node.t)) return false;
  render(made, node.c, depth + 1);
  return true;
}

/** Those that have nothing but what is inside. */
const PLAIN = new Set(['p', 'tight', 'quote', 'list', 'item', 'heading', 'em', 'strong', 'del']);

/** @param {Shown} node @param {number} depth @returns {Node} */
function create(node, depth) {
  if (depth > MAX_DEPTH) return document.createTextNode('…');
  const inside = (/** @type {Element} */ made) => {
    render(made, node.c ?? [], depth + 1);
    return made;
  };
  switch (node.t) {
    case 'text':
      return document.createTextNode(node.s ?? '');
    case 'soft':
      return document.createTextNode('\n');
    case 'break':
      return h('br');
    case 'hr':
      return h('hr');
    case 'code':
      return node.info === undefined ? h('code', {}, node.s ?? '') : codeBlock(node);
    case 'link':
      return inside(link(node));
    case 'image':
      return h('span', { class: 'image-name', title: node.href }, `[image: ${textOf(node) || node.href}]`);
    case 'tight':
      return inside(h('span', { class: 'tight' }));
    case 'heading':
      return inside(h(`h${Math.min(6, (node.level ?? 1) + 2)}`));
    case 'list':
      return inside(node.isOrdered ? h('ol', { start: node.start }) : h('ul'));
    case 'table':
      return table(node, depth);
    default:
      return inside(h(TAGS[node.t] ?? 'span'));
  }
}

/** @type {Record<string, string>} */
const TAGS = { p: 'p', quote: 'blockquote', item: 'li', em: 'em', strong: 'strong', del: 'del' };

/** @param {Shown} node */
function link(node) {
  const href = node.href ?? '';
  if (!isSafe(href)) return h('span', { class: 'dead-link', title: href });
  return h('a', { href, title: node.title || href, target: '_blank', rel: 'noopener noreferrer nofollow' });
}

/** @param {Shown} node */
function codeBlock(node) {
  const name = /^[\w+#.-]{1,20}/.exec(node.info ?? '')?.[0] ?? '';
  const code = h('code', { 'data-kind': name });
  code.appendChild(document.createTextNode(node.s ?? ''));
  const copy = h('button', { type: 'button', class: 'copy', onclick: () => copyOf(code, copy) }, 'Copy');
  const head = h('div', { class: 'code-head' }, h('span', {}, name), copy);
  return h('div', { class: 'code' }, head, h('pre', { tabindex: 0 }, code));
}

/** @param {Element} code @param {Element} button */
async function copyOf(code, button) {
  await copyText(code.textContent ?? '');
  button.textContent = 'Copied';
  setTimeout(() => (button.textContent = 'Copy'), 1500);
}

/** @param {Shown} node @param {number} depth */
function table(node, depth) {
  const rows = (node.c ?? []).map((row) => {
    const cells = (row.c ?? []).map((cell) => {
      const made = h(cell.isHead ? 'th' : 'td', { class: cell.align ? `to-${cell.align}` : null });
      render(made, cell.c ?? [], depth + 1);
      return made;
    });
    return h('tr', {}, cells);
  });
  const body = rows.length > 1 ? h('tbody', {}, rows.slice(1)) : null;
  return h('div', { class: 'table', tabindex: 0 }, h('table', {}, h('thead', {}, rows[0]), body));
}

/** The words in a node. @param {Shown} node @returns {string} */
function textOf(node) {
  return (node.s ?? '') + (node.c ?? []).map(textOf).join('');
}
