/**
 * Markdown that grows: blocks that are closed are read once, and only the open one again.
 * @module
 */
import { Blocks, shown } from './blocks.js';
import { parseInline } from './inline.js';

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
    /** What the lines of the open block were read as, with those. @type {Map<string, Shown[]>} */
    this.read = new Map();
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
    const inline = this.reader(references);
    this.settle(top.slice(0, Math.max(open, 0)), inline, blocks, top[open]?.first ?? 0);
    const rest = top.slice(Math.max(open, 0)).map((block) => shown(block, inline));
    return [...this.closed.map((each) => each.node), ...rest].filter((node) => node !== null);
  }

  /** Reads each line once; what is closed again, where it may name what was not defined before.
   * @param {import('./inline.js').References} references @returns {import('./blocks.js').Inline} */
  reader(references) {
    /** @type {import('./blocks.js').Inline} */
    const inline = (text) => {
      let found = this.read.get(text);
      if (!found) {
        found = /** @type {Shown[]} */ (parseInline(text.replace(/^[ \t\n]+|[ \t\n]+$/g, ''), references));
        this.read.set(text, found);
      }
      return found;
    };
    const names = JSON.stringify([...references]);
    if (names === this.names) return inline;
    this.names = names;
    this.read.clear();
    for (const each of this.closed) {
      if (/\[|"link"|"image"/.test(JSON.stringify(each.node))) each.node = shown(each.block, inline);
    }
    return inline;
  }

  /** These blocks stay as they are; the open one begins with line `first`.
   * @param {import('./blocks.js').Block[]} done @param {import('./blocks.js').Inline} inline
   * @param {Blocks} blocks @param {number} first */
  settle(done, inline, blocks, first) {
    if (first === 0) return;
    for (const { line, label, target } of blocks.definitions) {
      if (line < first && !this.references.has(label)) this.references.set(label, target);
    }
    for (const block of done) this.closed.push({ block, node: shown(block, inline) });
    this.from = offsetOf(this.text, this.from, first);
    if (done.length) this.read.clear();
  }
}

/** Where the line that comes `n` after `from` begins. @param {string} text @param {number} from @param {number} n */
function offsetOf(text, from, n) {
  const breaks = /\r\n|\n|\r/g;
  breaks.lastIndex = from;
  for (let i = 0; i < n; i++) breaks.exec(text);
  return breaks.lastIndex;
}
