/**
 * What stands in a line of Markdown, by CommonMark's rules for emphasis, links and code. HTML is
 * text.
 * @module
 */
import { entity } from './entities.js';
import { destination, encoded, matchAt, normal, spaces, title } from './links.js';

/**
 * `text`, `code`, `em`, `strong`, `del`, `link`, `image`, `break` (of a line), `soft`.
 * @typedef {{ t: string, s?: string, c?: Inline[], href?: string, title?: string, depth?: number }} Inline
 * @typedef {Map<string, import('./links.js').Target>} References
 */

/**
 * A node in the list of what was read so far.
 * @typedef {{ node: Inline, before: Item | null, after: Item | null }} Item
 */

/**
 * A run of `*`, `_` or `~` that may open or close something.
 * @typedef {{ item: Item, sign: string, n: number, whole: number, opens: boolean, closes: boolean,
 *   before: Run | null, after: Run | null }} Run
 */

/**
 * A `[` or `![`.
 * @typedef {{ item: Item, below: Run | null, at: number, isImage: boolean, isActive: boolean,
 *   hasInner: boolean, before: Bracket | null }} Bracket
 */

const PLAIN = /[^\n`\\*_~[\]!<&]+/y;
const TICKS = /`+/y;
const ADDRESS = /<([A-Za-z][A-Za-z0-9.+-]{1,31}:[^<>\x00-\x20]*)>/y;
const MAIL =
  /<([a-zA-Z0-9.!#$%&'*+/=?^_`{|}~-]+@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*)>/y;
const LABEL = /\[((?:\\[^]|[^\\[\]]){0,999})\]/y;
const ESCAPED = /[!-/:-@[-`{-~]/;
const MARK = /[\p{P}\p{S}]/u;
const SPACE = /[\s\u00a0]/u;
const MAX_DEPTH = 40;
/** Of things in each other: what is deeper stays as it is written. */

/** @param {string} text @param {References} references @returns {Inline[]} */
export function parseInline(text, references) {
  return new Reader(text, references).read();
}

class Reader {
  /** @param {string} text @param {References} references */
  constructor(text, references) {
    this.text = text;
    this.references = references;
    this.at = 0;
    /** @type {Item} */
    this.head = { node: { t: 'head' }, before: null, after: null };
    this.tail = this.head;
    /** @type {Run | null} */
    this.runs = null;
    /** @type {Bracket | null} */
    this.brackets = null;
    /** @type {Set<number>} */
    this.unclosed = new Set();
  }

  read() {
    while (this.at < this.text.length) this.next();
    this.emphasize(null);
    return joined(this.head);
  }

  next() {
    const plain = matchAt(PLAIN, this.text, this.at);
    if (plain) {
      this.at = PLAIN.lastIndex;
      this.say(plain[0]);
      return;
    }
    switch (this.text[this.at]) {
      case '\n':
        return this.lineBreak();
      case '\\':
        return this.backslash();
      case '`':
        return this.ticks();
      case '*':
      case '_':
      case '~':
        return this.run();
      case '[':
        return this.open(false);
      case ']':
        return this.close();
      case '!':
        return this.text[this.at + 1] === '[' ? this.open(true) : this.literal(1);
      case '<':
        return this.angle();
      default:
        return this.reference();
    }
  }

  /** @param {Inline} node @returns {Item} */
  put(node) {
    const item = { node, before: this.tail, after: null };
    this.tail.after = item;
    this.tail = item;
    return item;
  }

  /** @param {string} s */
  say(s) {
    return this.put({ t: 'text', s });
  }

  /** @param {number} n */
  literal(n) {
    this.say(this.text.slice(this.at, this.at + n));
    this.at += n;
  }

  lineBreak() {
    const last = this.tail.node;
    const isHard = last.t === 'text' && / {2,}$/.test(last.s ?? '');
    if (last.t === 'text') last.s = (last.s ?? '').replace(/ +$/, '');
    this.put({ t: isHard ? 'break' : 'soft' });
    this.at++;
    while (this.text[this.at] === ' ') this.at++;
  }

  backslash() {
    const next = this.text[this.at + 1];
    if (next === '\n') {
      this.put({ t: 'break' });
      this.at += 2;
      while (this.text[this.at] === ' ') this.at++;
    } else if (next && ESCAPED.test(next)) {
      this.say(next);
      this.at += 2;
    } else this.literal(1);
  }

  /** Code: up to the next run of as many ticks. */
  ticks() {
    const open = matchAt(TICKS, this.text, this.at)?.[0] ?? '';
    const start = this.at + open.length;
    let from = start;
    while (!this.unclosed.has(open.length)) {
      const next = this.text.indexOf('`', from);
      const closing = next < 0 ? null : matchAt(TICKS, this.text, next);
      if (!closing) {
        this.unclosed.add(open.length);
      } else if (closing[0].length === open.length) {
        this.put({ t: 'code', s: codeOf(this.text.slice(start, next)) });
        this.at = TICKS.lastIndex;
        return;
      } else from = TICKS.lastIndex;
    }
    this.literal(open.length);
  }

  run() {
    const sign = this.text[this.at];
    let n = 1;
    while (this.text[this.at + n] === sign) n++;
    const before = pointBefore(this.text, this.at);
    const after = this.at + n < this.text.length ? pointAt(this.text, this.at + n) : ' ';
    const isLeft = !SPACE.test(after) && (!MARK.test(after) || SPACE.test(before) || MARK.test(before));
    const isRight = !SPACE.test(before) && (!MARK.test(before) || SPACE.test(after) || MARK.test(after));
    const item = this.say(this.text.slice(this.at, this.at + n));
    this.at += n;
    if (sign === '~' && n !== 2) return;
    const isWord = sign === '_';
    const opens = isLeft && (!isWord || !isRight || MARK.test(before));
    const closes = isRight && (!isWord || !isLeft || MARK.test(after));
    const run = { item, sign, n, whole: n, opens, closes, before: this.runs, after: null };
    if (this.runs) this.runs.after = run;
    this.runs = run;
  }

  /** @param {boolean} isImage */
  open(isImage) {
    const item = this.say(isImage ? '![' : '[');
    this.at += isImage ? 2 : 1;
    if (this.brackets) this.brackets.hasInner = true;
    this.brackets = {
      item, isImage, below: this.runs, at: this.at, isActive: true, hasInner: false, before: this.brackets,
    };
  }

  close() {
    const bracket = this.brackets;
    if (!bracket || !bracket.isActive) {
      if (bracket) this.brackets = bracket.before;
      return this.literal(1);
    }
    const found = this.target(bracket);
    if (!found) {
      this.brackets = bracket.before;
      return this.literal(1);
    }
    this.emphasize(bracket.below);
    const inner = joined(bracket.item);
    const depth = depthOf(inner);
    if (depth > MAX_DEPTH) {
      this.brackets = bracket.before;
      return this.literal(1);
    }
    this.at = found.end;
    const kind = bracket.isImage ? 'image' : 'link';
    this.tail = bracket.item;
    this.tail.after = null;
    bracket.item.node = { t: kind, c: inner, href: found.href, title: found.title, depth };
    this.brackets = bracket.before;
    if (bracket.isImage) return;
    for (let each = this.brackets; each && each.isActive; each = each.before) {
      if (!each.isImage) each.isActive = false;
    }
  }

  /** Where what ends here leads, if it is a link. @param {Bracket} bracket */
  target(bracket) {
    const after = this.at + 1;
    const direct = this.text[after] === '(' ? this.direct(after + 1) : null;
    if (direct) return direct;
    const named = matchAt(LABEL, this.text, after);
    const own = this.text.slice(bracket.at, this.at);
    const isOwn = !named || named[1] === '';
    if (isOwn && (bracket.hasInner || own.length > 999)) return null;
    const found = this.references.get(normal(isOwn ? own : named[1]));
    return found ? { ...found, end: named ? LABEL.lastIndex : after } : null;
  }

  /** `(destination "title")`, behind its parenthesis. @param {number} at */
  direct(at) {
    const start = spaces(this.text, at);
    const to = destination(this.text, start) ?? { href: '', end: start };
    let end = spaces(this.text, to.end);
    const told = end > to.end ? title(this.text, end) : null;
    if (told) end = spaces(this.text, told.end);
    return this.text[end] === ')' ? { href: to.href, title: told?.title ?? '', end: end + 1 } : null;
  }

  angle() {
    const address = matchAt(ADDRESS, this.text, this.at);
    const mail = address ? null : matchAt(MAIL, this.text, this.at);
    const found = address ?? mail;
    if (!found) return this.literal(1);
    const href = encoded((mail ? 'mailto:' : '') + found[1]);
    this.put({ t: 'link', c: [{ t: 'text', s: found[1] }], href, title: '' });
    this.at += found[0].length;
  }

  reference() {
    const found = entity(this.text, this.at);
    if (!found) return this.literal(1);
    this.say(found.text);
    this.at = found.end;
  }

  /** Pairs the runs above `bottom`. @param {Run | null} bottom */
  emphasize(bottom) {
    /** @type {Map<string, Run | null>} */
    const floors = new Map();
    let closer = this.firstAbove(bottom);
    while (closer) {
      if (!closer.closes) {
        closer = closer.after;
        continue;
      }
      const key = `${closer.sign}${closer.opens}${closer.whole % 3}`;
      const floor = floors.has(key) ? floors.get(key) : bottom;
      const opener = openerOf(closer, floor ?? null, bottom);
      if (opener && this.pair(opener, closer)) {
        if (closer.n === 0) {
          const next = closer.after;
          this.drop(closer);
          closer = next;
        }
        continue;
      }
      floors.set(key, closer.before);
      const next = closer.after;
      if (!closer.opens) this.drop(closer);
      closer = next;
    }
    this.runs = bottom;
    if (bottom) bottom.after = null;
  }

  /** @param {Run | null} bottom */
  firstAbove(bottom) {
    let run = this.runs;
    while (run && run.before !== bottom) run = run.before;
    return run;
  }

  /** Wraps what is between the two, unless that is too deep. @param {Run} opener @param {Run} closer */
  pair(opener, closer) {
    const use = closer.n >= 2 && opener.n >= 2 ? 2 : 1;
    /** @type {Item | null} */
    const first = opener.item.after;
    if (!first || first === closer.item) return false;
    const last = /** @type {Item} */ (closer.item.before);
    last.after = null;
    const inner = joined({ node: { t: 'head' }, before: null, after: first });
    const depth = depthOf(inner);
    if (depth > MAX_DEPTH) {
      last.after = closer.item;
      return false;
    }
    const t = opener.sign === '~' ? 'del' : use === 2 ? 'strong' : 'em';
    const item = { node: { t, c: inner, depth }, before: opener.item, after: closer.item };
    opener.item.after = item;
    closer.item.before = item;
    for (let each = closer.before; each && each !== opener; each = closer.before) this.drop(each);
    this.shorten(opener, use);
    this.shorten(closer, use);
    if (opener.n === 0) this.drop(opener);
    return true;
  }

  /** @param {Run} run @param {number} use */
  shorten(run, use) {
    run.n -= use;
    run.item.node.s = run.sign.repeat(run.n);
  }

  /** @param {Run} run */
  drop(run) {
    if (run.before) run.before.after = run.after;
    if (run.after) run.after.before = run.before;
    else this.runs = run.before;
  }
}

/** @param {Run} closer @param {Run | null} floor @param {Run | null} bottom */
function openerOf(closer, floor, bottom) {
  for (let run = closer.before; run && run !== floor && run !== bottom; run = run.before) {
    if (run.sign !== closer.sign || !run.opens) continue;
    const isOdd = (closer.opens || run.closes) && closer.whole % 3 !== 0 && (run.whole + closer.whole) % 3 === 0;
    if (!isOdd) return run;
  }
  return null;
}

/** The nodes behind `head`, texts beside each other as one. @param {Item} head @returns {Inline[]} */
function joined(head) {
  /** @type {Inline[]} */
  const found = [];
  for (let item = head.after; item; item = item.after) {
    const { node } = item;
    const last = found.at(-1);
    if (node.t !== 'text') found.push(node);
    else if (last?.t === 'text') found[found.length - 1] = { t: 'text', s: (last.s ?? '') + node.s };
    else if (node.s) found.push(node);
  }
  return found;
}

/** @param {Inline[]} nodes */
function depthOf(nodes) {
  return 1 + nodes.reduce((most, node) => Math.max(most, node.depth ?? 0), 0);
}

/** @param {string} written */
function codeOf(written) {
  const s = written.replace(/\n/g, ' ');
  const isPadded = s.length > 2 && s[0] === ' ' && s.at(-1) === ' ' && /[^ ]/.test(s);
  return isPadded ? s.slice(1, -1) : s;
}

/** @param {string} text @param {number} at */
function pointAt(text, at) {
  return String.fromCodePoint(text.codePointAt(at) ?? 32);
}

/** @param {string} text @param {number} at */
function pointBefore(text, at) {
  if (at === 0) return ' ';
  const low = text.charCodeAt(at - 1);
  return at > 1 && low >= 0xdc00 && low < 0xe000 ? pointAt(text, at - 2) : text[at - 1];
}
