/**
 * The blocks of Markdown, by CommonMark's rules, line by line, and GitHub's tables. HTML is text.
 * @module
 */
import { unescape } from './entities.js';
import { definition } from './links.js';
import { Line } from './line.js';

/**
 * While it is read. `t`: `root`, `quote`, `list`, `item`, `p`, `heading`, `fence`, `indented`, `hr`,
 * `table`. `born`: the line that it was recognized at, which for a table is the second.
 * @typedef {{ t: string, c: Block[], s: string, first: number, last: number,
 *   born: number, list?: ListKind,
 *   level?: number, fence?: Fence, rows?: string[][], aligns?: string[], isGone?: boolean }} Block
 * @typedef {{ sign: string, isOrdered: boolean, start: number, offset: number, width: number }} ListKind
 * @typedef {{ sign: string, n: number, offset: number, info: string }} Fence
 */

/**
 * As it is shown. `t`: `p`, `tight` (a paragraph without space around it), `heading`, `quote`, `list`,
 * `item`, `code`, `hr`, `table`, `row`, `cell`, and those of `inline.js`.
 * @typedef {{ t: string, s?: string, c?: Shown[], level?: number, start?: number, isOrdered?: boolean,
 *   info?: string, align?: string, isHead?: boolean, href?: string, title?: string }} Shown
 */

/** What a line of text has in it. @typedef {(text: string) => Shown[]} Inline */

/** @typedef {{ line: number, label: string, target: import('./links.js').Target }} Definition */

const HEADING = /^(#{1,6})(?:[ \t]+|$)/;
const FENCE = /^(?:(`{3,})([^`]*)|(~{3,})(.*))$/;
const UNDERLINE = /^(?:=+|-+)[ \t]*$/;
const RULE = /^(?:(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|(?:-[ \t]*){3,})$/;
const BULLET = /^[*+-](?=[ \t]|$)/;
const NUMBER = /^(\d{1,9})([.)])(?=[ \t]|$)/;
const DELIMITERS = /^\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const CONTAINERS = new Set(['root', 'quote', 'list', 'item']);
const MAX_DEPTH = 60;
/** Of containers in each other: further signs are text. */

/** Reads blocks; `lines` are without their line breaks. */
export class Blocks {
  constructor() {
    /** @type {Block} */
    this.root = block('root', 0);
    this.open = [this.root];
    /** @type {Definition[]} */
    this.definitions = [];
    this.n = 0;
  }

  /** @param {string} text */
  add(text) {
    const line = new Line(text.replaceAll('\0', '\ufffd'));
    const depth = this.matched(line);
    if (depth >= 0) this.place(line, depth);
    if (text.trim()) for (const each of this.open) each.last = this.n;
    this.n++;
  }

  /** All is closed. */
  end() {
    this.closeTo(1);
    return this.root;
  }

  get tip() {
    return /** @type {Block} */ (this.open.at(-1));
  }

  /** How many of the open blocks go on with the line, which is read as far as they do; -1 when it ends
   * code. @param {Line} line */
  matched(line) {
    let depth = 1;
    for (; depth < this.open.length; depth++) {
      const each = this.open[depth];
      if (each.t === 'fence' && isEnd(line, /** @type {Fence} */ (each.fence))) {
        this.closeTo(depth);
        return -1;
      }
      if (!goesOn(each, line)) break;
    }
    return depth;
  }

  /** @param {Line} line @param {number} depth */
  place(line, depth) {
    let reached = depth;
    let leaf = this.open[reached - 1];
    while ((CONTAINERS.has(leaf.t) || leaf.t === 'p' || leaf.t === 'table') && this.start(line, reached)) {
      reached = this.open.length;
      leaf = this.tip;
      if (!CONTAINERS.has(leaf.t) && leaf.t !== 'indented') return; // its line is read
    }
    const isLazy = reached < this.open.length && this.tip.t === 'p' && !line.isBlank;
    if (isLazy) {
      addTo(this.tip, line.content);
      return;
    }
    this.closeTo(reached);
    leaf = this.tip;
    if (leaf.t === 'fence' || leaf.t === 'indented') leaf.s += `${line.rest}\n`;
    else if (line.isBlank) return;
    else if (leaf.t === 'p') addTo(leaf, line.content);
    else if (leaf.t === 'table') leaf.rows?.push(cells(line.content));
    else if (CONTAINERS.has(leaf.t)) addTo(this.push('p'), line.content);
  }

  /** A block that begins with the line, if one does, in the place of those beyond `depth`.
   * @param {Line} line @param {number} depth @returns {boolean} */
  start(line, depth) {
    const { indent } = line.next;
    if (line.isBlank) return false;
    const above = this.open[depth - 1];
    if (indent >= 4) {
      if (this.tip.t === 'p' || above.t === 'p' || above.t === 'table') return false;
      this.closeTo(depth);
      line.indent(4);
      this.push('indented');
      return true;
    }
    return this.startMarked(line, depth, above, indent);
  }

  /** @param {Line} line @param {number} depth @param {Block} above @param {number} indent */
  startMarked(line, depth, above, indent) {
    const content = line.content;
    const isDeep = this.open.length > MAX_DEPTH;
    if (content[0] === '>' && !isDeep) {
      this.closeTo(depth);
      line.skip();
      line.take(1);
      if (line.isSpace) line.indent(1);
      this.push('quote');
      return true;
    }
    if (this.startHeading(content, depth, above)) return finish(line);
    const fence = FENCE.exec(content);
    if (fence) {
      this.closeTo(depth);
      const run = fence[1] ?? fence[3];
      const info = unescape((fence[2] ?? fence[4]).trim());
      this.push('fence').fence = { sign: run[0], n: run.length, offset: indent, info };
      return finish(line);
    }
    if (above.t === 'p' && this.startTable(content, depth, above)) return finish(line);
    if (RULE.test(content)) {
      this.closeTo(depth);
      this.push('hr');
      return finish(line);
    }
    return !isDeep && this.startItem(line, depth, above, indent);
  }

  /** With a mark before it, or a line below. @param {string} content @param {number} depth @param {Block} above */
  startHeading(content, depth, above) {
    const marked = HEADING.exec(content);
    if (marked) {
      this.closeTo(depth);
      const heading = this.push('heading');
      heading.level = marked[1].length;
      const text = content.slice(marked[0].length);
      heading.s = text.replace(/^#+[ \t]*$/, '').replace(/[ \t]+#+[ \t]*$/, '').trim();
      return true;
    }
    if (above.t !== 'p' || !UNDERLINE.test(content) || !this.takeDefinitions(above)) return false;
    above.t = 'heading';
    above.level = content[0] === '=' ? 1 : 2;
    above.s = above.s.trim();
    this.closeTo(depth);
    return true;
  }

  /** The last line of the paragraph becomes the head. @param {string} content @param {number} depth @param {Block} above */
  startTable(content, depth, above) {
    if (!DELIMITERS.test(content) || !/[|:]/.test(content)) return false;
    const lines = above.s.split('\n');
    const head = cells(lines.at(-1) ?? '');
    const marks = cells(content);
    if (head.length !== marks.length) return false;
    const isWhole = lines.length === 1;
    above.s = lines.slice(0, -1).join('\n');
    this.closeTo(depth);
    if (isWhole) above.isGone = true;
    this.closeTo(depth - 1);
    const table = this.push('table');
    table.first = this.n - 1;
    table.rows = [head];
    table.aligns = marks.map(alignOf);
    return true;
  }

  /** @param {Line} line @param {number} depth @param {Block} above @param {number} indent */
  startItem(line, depth, above, indent) {
    const kind = listKind(line, above.t === 'p', indent);
    if (!kind) return false;
    this.closeTo(depth);
    if (this.tip.t === 'p' || this.tip.t === 'table') this.closeTo(depth - 1);
    const list = this.tip;
    if (list.t !== 'list' || list.list?.sign !== kind.sign) {
      if (list.t === 'list') this.closeTo(this.open.length - 1);
      this.push('list').list = kind;
    }
    this.push('item').list = kind;
    return true;
  }

  /** A block inside the innermost that may have it. @param {string} t */
  push(t) {
    while (!CONTAINERS.has(this.tip.t) || (this.tip.t === 'list') !== (t === 'item')) {
      this.closeTo(this.open.length - 1);
    }
    const made = block(t, this.n);
    this.tip.c.push(made);
    this.open.push(made);
    return made;
  }

  /** Closes all but the first `depth` open blocks. @param {number} depth */
  closeTo(depth) {
    while (this.open.length > depth) {
      const closed = /** @type {Block} */ (this.open.pop());
      if (closed.t === 'p' && !this.takeDefinitions(closed)) closed.isGone = true;
      if (closed.t === 'indented') closed.s = closed.s.replace(/\n(?:[ \t]*\n)*$/, '\n');
    }
  }

  /** Takes what defines references from its beginning; whether something is left. @param {Block} paragraph */
  takeDefinitions(paragraph) {
    for (;;) {
      const found = paragraph.s[0] === '[' ? definition(paragraph.s) : null;
      if (!found) break;
      this.definitions.push({ line: paragraph.first, label: found.label, target: found.target });
      paragraph.s = paragraph.s.slice(found.end);
    }
    return paragraph.s.trim() !== '';
  }
}

/** @param {string} t @param {number} line @returns {Block} */
function block(t, line) {
  return { t, c: [], s: '', first: line, last: line, born: line };
}

/** @param {Line} line */
function finish(line) {
  line.take(line.text.length - line.at);
  return true;
}

/** @param {Block} paragraph @param {string} content */
function addTo(paragraph, content) {
  paragraph.s += (paragraph.s ? '\n' : '') + content;
}

/** Whether an open block takes the line, of which it reads its part. @param {Block} open @param {Line} line */
function goesOn(open, line) {
  const { at, indent } = line.next;
  switch (open.t) {
    case 'list':
      return true;
    case 'quote':
      if (indent > 3 || line.text[at] !== '>') return false;
      line.skip();
      line.take(1);
      if (line.isSpace) line.indent(1);
      return true;
    case 'item':
      return itemGoesOn(open, line, indent);
    case 'fence':
      line.indent(Math.min(indent, open.fence?.offset ?? 0));
      return true;
    case 'indented':
      if (indent < 4 && !line.isBlank) return false;
      line.indent(Math.min(indent, 4));
      return true;
    case 'p':
    case 'table':
      return !line.isBlank;
    default:
      return false;
  }
}

/** @param {Block} item @param {Line} line @param {number} indent */
function itemGoesOn(item, line, indent) {
  const kind = /** @type {ListKind} */ (item.list);
  if (line.isBlank) {
    if (!item.c.length) return false;
    line.skip();
    return true;
  }
  if (indent < kind.offset + kind.width) return false;
  line.indent(kind.offset + kind.width);
  return true;
}

/** Whether the line is the end of that code. @param {Line} line @param {Fence} fence */
function isEnd(line, fence) {
  const match = /^(?:`{3,}|~{3,})(?=[ \t]*$)/.exec(line.content);
  return line.next.indent < 4 && match !== null && match[0][0] === fence.sign && match[0].length >= fence.n;
}

/**
 * What kind of item begins with the line, which is read up to its text.
 * @param {Line} line @param {boolean} interrupts a paragraph @param {number} offset @returns {ListKind | null}
 */
function listKind(line, interrupts, offset) {
  const content = line.content;
  const bullet = BULLET.exec(content);
  const number = bullet ? null : NUMBER.exec(content);
  const mark = (bullet ?? number)?.[0];
  if (mark === undefined) return null;
  const start = number ? Number(number[1]) : 0;
  if (interrupts && (!content.slice(mark.length).trim() || (number && start !== 1))) return null;
  line.skip();
  line.take(mark.length);
  const behind = line.mark();
  const { indent } = line.next;
  let width = mark.length + indent;
  if (indent < 5 && indent > 0 && !line.isBlank) line.indent(indent);
  else {
    line.reset(behind);
    width = mark.length + 1;
    if (line.isSpace) line.indent(1);
  }
  return { sign: mark.at(-1) ?? '', isOrdered: number !== null, start, offset, width };
}

/** Of a row: between bars that no backslash stands before. @param {string} row */
function cells(row) {
  const inner = row.trim().replace(/^\|/, '').replace(/(^|[^\\])\|$/, '$1');
  return (inner.match(/(?:\\.|[^\\|])+|(?<=\||^)(?=\||$)|\\$/g) ?? ['']).map((x) => x.trim().replaceAll('\\|', '|'));
}

/** @param {string} mark */
function alignOf(mark) {
  const isLeft = mark.startsWith(':');
  const isRight = mark.endsWith(':');
  return isLeft && isRight ? 'center' : isRight ? 'right' : isLeft ? 'left' : '';
}

/** `block` as it is shown; null for what only defined references. @param {Block} block @param {Inline} inline
 * @param {boolean} [isTight] @returns {Shown | null} */
export function shown(block, inline, isTight = false) {
  if (block.isGone) return null;
  switch (block.t) {
    case 'p':
      return { t: isTight ? 'tight' : 'p', c: inline(block.s) };
    case 'heading':
      return { t: 'heading', level: block.level, c: inline(block.s) };
    case 'fence':
    case 'indented':
      return { t: 'code', s: block.s, info: block.fence?.info ?? '' };
    case 'hr':
      return { t: 'hr' };
    case 'table':
      return tableOf(block, inline);
    case 'list': {
      const kind = /** @type {ListKind} */ (block.list);
      const c = within(block, inline, !isLoose(block));
      return { t: 'list', isOrdered: kind.isOrdered, start: kind.start, c };
    }
    default:
      return { t: block.t, c: within(block, inline, isTight && block.t === 'item') };
  }
}

/** @param {Block} block @param {Inline} inline @param {boolean} isTight */
function within(block, inline, isTight) {
  return block.c.flatMap((each) => shown(each, inline, isTight) ?? []);
}

/** Whether blank lines are between its items or within one. @param {Block} list */
function isLoose(list) {
  const isApart = (/** @type {Block[]} */ blocks) =>
    blocks.some((each, i) => i > 0 && each.first - blocks[i - 1].last > 1);
  return isApart(list.c) || list.c.some((item) => isApart(item.c));
}

/** @param {Block} table @param {Inline} inline @returns {Shown} */
function tableOf(table, inline) {
  const aligns = table.aligns ?? [];
  const row = (/** @type {string[]} */ texts, /** @type {boolean} */ isHead) => ({
    t: 'row', isHead, c: aligns.map((align, i) => ({ t: 'cell', isHead, align, c: inline(texts[i] ?? '') })),
  });
  return { t: 'table', c: (table.rows ?? []).map((texts, i) => row(texts, i === 0)) };
}
