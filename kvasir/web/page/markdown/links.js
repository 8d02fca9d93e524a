/**
 * Destinations, titles and labels of links, and definitions of references.
 * @module
 */
import { unescape } from './entities.js';

/** @typedef {{ href: string, title: string }} Target */

const LABEL = /\[((?:\\[^]|[^\\[\]]){1,999})\]/y;
const ANGLED = /<((?:\\.|[^\\<>\n])*)>/y;
const TITLE =
  /"((?:\\[^]|[^\\"]){0,999})"|'((?:\\[^]|[^\\']){0,999})'|\(((?:\\[^]|[^\\()]){0,999})\)/y;
const MAX_PARENTHESES = 32;
const MAX_ADDRESS = 4000;

/** What two labels are compared by. */
export function normal(/** @type {string} */ label) {
  return label.trim().replace(/[ \t\r\n]+/g, ' ').toLowerCase().toUpperCase();
}

/** @param {RegExp} sticky @param {string} text @param {number} at */
export function matchAt(sticky, text, at) {
  sticky.lastIndex = at;
  return sticky.exec(text);
}

/** As browsers write addresses: what is not allowed in one is percent-encoded. */
export function encoded(/** @type {string} */ href) {
  return href.replace(
    /%[0-9a-fA-F]{2}|[^A-Za-z0-9;/?:@&=+$,\-_.!~*'()#]/gu,
    (each) => (each.length === 3 && each[0] === '%' ? each : percent(each)),
  );
}

function percent(/** @type {string} */ each) {
  try {
    return encodeURIComponent(each);
  } catch {
    return '%EF%BF%BD';
  }
}

/**
 * A destination at `at`. @param {string} text @param {number} at
 * @returns {{ href: string, end: number } | null}
 */
export function destination(text, at) {
  if (text[at] === '<') {
    const angled = matchAt(ANGLED, text, at);
    return angled && { href: encoded(unescape(angled[1])), end: ANGLED.lastIndex };
  }
  let i = at;
  for (let depth = 0; i < text.length && i - at < MAX_ADDRESS; i++) {
    const c = text[i];
    if (c === '\\' && i + 1 < text.length && /[!-/:-@[-`{-~]/.test(text[i + 1])) i++;
    else if (c === '(') {
      if (++depth > MAX_PARENTHESES) return null;
    } else if (c === ')') {
      if (depth-- === 0) break;
    } else if (c <= ' ' || c === '\x7f') break;
  }
  const open = text.slice(at, i);
  if (i === at && text[at] !== ')') return null;
  return balanced(open) ? { href: encoded(unescape(open)), end: i } : null;
}

function balanced(/** @type {string} */ text) {
  let depth = 0;
  for (let i = 0; i < text.length; i++) {
    if (text[i] === '\\') i++;
    else if (text[i] === '(') depth++;
    else if (text[i] === ')') depth--;
  }
  return depth === 0;
}

/** A title at `at`. @param {string} text @param {number} at @returns {{ title: string, end: number } | null} */
export function title(text, at) {
  const match = matchAt(TITLE, text, at);
  if (!match) return null;
  const inner = match[1] ?? match[2] ?? match[3];
  return /\n[ \t]*\n/.test(inner) ? null : { title: unescape(inner), end: TITLE.lastIndex };
}

/** Where spaces and at most one line break end. @param {string} text @param {number} at */
export function spaces(text, at) {
  const match = /[ \t]*(?:\n[ \t]*)?/y;
  match.lastIndex = at;
  match.exec(text);
  return match.lastIndex;
}

/**
 * A definition at the beginning of a paragraph: `[label]: destination "title"`.
 * @param {string} text
 * @returns {{ label: string, target: Target, end: number } | null}
 */
export function definition(text) {
  const named = matchAt(LABEL, text, 0);
  if (!named || !named[1].trim() || text[LABEL.lastIndex] !== ':') return null;
  const start = spaces(text, LABEL.lastIndex + 1);
  const to = destination(text, start);
  if (!to || (to.end === start && text[start] !== '<')) return null;
  const after = spaces(text, to.end);
  const told = after > to.end ? title(text, after) : null;
  const plain = lineEnd(text, to.end);
  const titled = told ? lineEnd(text, told.end) : -1;
  const end = titled >= 0 ? titled : plain;
  if (end < 0) return null;
  const shown = titled >= 0 && told ? told.title : '';
  return { label: normal(named[1]), target: { href: to.href, title: shown }, end };
}

/** Where the next line begins, if only spaces come before it; else -1. @param {string} text @param {number} at */
function lineEnd(text, at) {
  const match = /[ \t]*(?:\n|$)/y;
  match.lastIndex = at;
  return match.exec(text) ? match.lastIndex : -1;
}
