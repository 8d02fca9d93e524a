/**
 * Markdown that grows: blocks that are closed are read once, and only the open one again.
 * @module
 */
import { Blocks, shown } from './blocks.js';

/** @typedef {import('./blocks.js').Shown} Shown */

/** All of a text at once. @param {string} text @returns {Shown[]} */
export function parse(text) {
  const stream = new MarkdownStream();
  stream.append(text);
  return stream.nodes();
}

export class MarkdownStream {
  constructor() {
    this.text = '';
    /** Where the open block begins. */
    this.from = 0;
    /** @type {{ block: import('./blocks.js').Block, node: Shown | null }[]} */
    this.closed = [];
    /** @type {import('./inline.js').References} */
    this.references = new Map();
    /** Those that what is closed was read with. */
    this.names = '[]';
  }

  /** @param {string} more */
  append(more) {
    this.text += more;
  }

  /** What is to be shown of the text so far: nodes of closed blocks are the same ones as before. */
  nodes() {
    const lines = this.text.slice(this.from).split(/\r\n|\n|\r(?!$)/);
    const blocks = new Blocks();
    const last = lines.length - 1; // which may go on
    lines.forEach((line, i) => (i < last || line) && blocks.add(line));
    const top = blocks.end().c;
    const open = top.findLastIndex((each) => each.born < last);
    const references = new Map(this.references);
    for (const { label, target } of blocks.definitions) {
      if (!references.has(label)) references.set(label, target);
    }
    this.settle(top.slice(0, Math.max(open, 0)), references, blocks, top[open]?.first ?? 0);
    this.readAgain(references);
    const rest = top.slice(Math.max(open, 0)).map((block) => shown(block, references));
    return [...this.closed.map((each) => each.node), ...rest].filter((node) => node !== null);
  }

  /** These blocks stay as they are; the open one begins with line `first`.
   * @param {import('./blocks.js').Block[]} done @param {import('./inline.js').References} references
   * @param {Blocks} blocks @param {number} first */
  settle(done, references, blocks, first) {
    if (first === 0) return;
    for (const { line, label, target } of blocks.definitions) {
      if (line < first && !this.references.has(label)) this.references.set(label, target);
    }
    for (const block of done) this.closed.push({ block, node: shown(block, references) });
    this.from = offsetOf(this.text, this.from, first);
  }

  /** What is closed, as it may name what is defined behind it; where something is that was not.
   * @param {import('./inline.js').References} references */
  readAgain(references) {
    const names = JSON.stringify([...references]);
    if (names === this.names) return;
    this.names = names;
    for (const each of this.closed) {
      if (/\[|"link"|"image"/.test(JSON.stringify(each.node))) each.node = shown(each.block, references);
    }
  }
}

/** Where the line that comes `n` after `from` begins. @param {string} text @param {number} from @param {number} n */
function offsetOf(text, from, n) {
  const breaks = /\r\n|\n|\r/g;
  breaks.lastIndex = from;
  for (let i = 0; i < n; i++) breaks.exec(text);
  return breaks.lastIndex;
}
