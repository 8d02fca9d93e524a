// As much of a document as the page's own modules need: nodes, and how they are written.
import { fileURLToPath, pathToFileURL } from 'node:url';
import { dirname, join } from 'node:path';

class FakeNode {
  constructor() {
    this.childNodes = [];
    this.parentNode = null;
  }
  get firstChild() {
    return this.childNodes[0] ?? null;
  }
  get lastChild() {
    return this.childNodes.at(-1) ?? null;
  }
  get textContent() {
    return this.childNodes.map((each) => each.textContent).join('');
  }
  set textContent(text) {
    this.replaceChildren(...(text ? [new FakeText(text)] : []));
  }
  appendChild(node) {
    return this.insertBefore(node, null);
  }
  append(...nodes) {
    for (const node of nodes) this.appendChild(node);
  }
  insertBefore(node, before) {
    node.remove();
    const at = before === null ? this.childNodes.length : this.childNodes.indexOf(before);
    if (at < 0) throw new Error('not a child');
    this.childNodes.splice(at, 0, node);
    node.parentNode = this;
    return node;
  }
  replaceChildren(...nodes) {
    for (const each of [...this.childNodes]) each.remove();
    this.append(...nodes);
  }
  remove() {
    const siblings = this.parentNode?.childNodes;
    if (siblings) siblings.splice(siblings.indexOf(this), 1);
    this.parentNode = null;
  }
}

export class FakeText extends FakeNode {
  constructor(data) {
    super();
    this.data = data;
  }
  get textContent() {
    return this.data;
  }
}

export class FakeElement extends FakeNode {
  constructor(tag) {
    super();
    this.tag = tag;
    this.attributes = new Map();
    this.listeners = [];
    this.style = {};
    this.classList = { toggle() {}, add() {}, remove() {}, contains: () => false };
  }
  setAttribute(name, value) {
    this.attributes.set(name, value);
  }
  getAttribute(name) {
    return this.attributes.get(name) ?? null;
  }
  addEventListener(name, does) {
    this.listeners.push([name, does]);
  }
}

const stored = { getItem: () => null, setItem() {}, removeItem() {} };
Object.assign(globalThis, {
  Node: FakeNode,
  HTMLElement: FakeElement,
  document: {
    createElement: (tag) => new FakeElement(tag),
    createElementNS: (_, tag) => new FakeElement(tag),
    createTextNode: (data) => new FakeText(data),
  },
  localStorage: stored,
  sessionStorage: stored,
});

const PAGE = join(dirname(fileURLToPath(import.meta.url)), '../../kvasir/web/page');
export const page = (name) => import(pathToFileURL(join(PAGE, name)).href);

/** Every element below a node. */
export function* elements(node) {
  for (const each of node.childNodes) {
    if (each instanceof FakeElement) yield each;
    yield* elements(each);
  }
}

/** A source of numbers that are the same each time: Mulberry32. */
export function numbers(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let x = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}
