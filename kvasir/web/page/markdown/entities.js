/**
 * Names of characters that texts use; others stay as they are written.
 * @module
 */

const NAMES =
  'amp& lt< gt> quot" apos\' nbsp\u00a0 copy© reg® trade™ hellip… mdash— ndash– lsquo‘ rsquo’ ldquo“ ' +
  'rdquo” laquo« raquo» bull• middot· sect§ para¶ deg° plusmn± times× divide÷ frac12½ frac14¼ frac34¾ ' +
  'sup1¹ sup2² sup3³ micro\u00b5 euro€ pound£ yen¥ cent¢ larr← uarr↑ rarr→ darr↓ harr↔ rArr⇒ lArr⇐ hArr⇔ ' +
  'forall∀ part∂ exist∃ empty∅ nabla∇ isin∈ notin∉ ni∋ prod∏ sum∑ minus− radic√ infin∞ cap∩ cup∪ int∫ ' +
  'asymp≈ ne≠ equiv≡ le≤ ge≥ sub⊂ sup⊃ and∧ or∨ alpha\u03b1 beta\u03b2 gamma\u03b3 delta\u03b4 ' +
  'epsilon\u03b5 lambda\u03bb mu\u03bc pi\u03c0 rho\u03c1 sigma\u03c3 tau\u03c4 phi\u03c6 omega\u03c9 Delta\u0394 ' +
  'Sigma\u03a3 Omega\u03a9 auml\u00e4 ouml\u00f6 uuml\u00fc Auml\u00c4 Ouml\u00d6 Uuml\u00dc szlig\u00df eacute\u00e9 egrave\u00e8 ' +
  'agrave\u00e0 aacute\u00e1 ccedil\u00e7 ntilde\u00f1 AElig\u00c6 aelig\u00e6 oslash\u00f8 aring\u00e5 Dcaron\u010e ' +
  'HilbertSpace\u210b DifferentialD\u2146 ClockwiseContourIntegral\u2232 ngE\u2267\u0338';

/** @type {Map<string, string>} */
const TABLE = new Map(
  NAMES.split(' ').map((each) => {
    const name = /^[A-Za-z]+[0-9]*/.exec(each)?.[0] ?? '';
    return [name, each.slice(name.length)];
  }),
);
const REFERENCE = /&(?:#[xX]([0-9a-fA-F]{1,6})|#([0-9]{1,7})|([A-Za-z][A-Za-z0-9]*));/y;

/**
 * What a reference at `at` stands for, and where it ends; null where there is none.
 * @param {string} text @param {number} at @returns {{ text: string, end: number } | null}
 */
export function entity(text, at) {
  REFERENCE.lastIndex = at;
  const match = REFERENCE.exec(text);
  if (!match) return null;
  const end = REFERENCE.lastIndex;
  if (match[3]) {
    const found = TABLE.get(match[3]);
    return found === undefined ? null : { text: found, end };
  }
  const code = match[1] ? parseInt(match[1], 16) : parseInt(match[2], 10);
  const isBad = code === 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000);
  return { text: isBad ? '\ufffd' : String.fromCodePoint(code), end };
}

/** `text` with its backslashes and references resolved, as in addresses and titles. */
export function unescape(/** @type {string} */ text) {
  let out = '';
  for (let i = 0; i < text.length; ) {
    const next = text[i + 1];
    if (text[i] === '\\' && next && /[!-/:-@[-`{-~]/.test(next)) {
      out += next;
      i += 2;
      continue;
    }
    const found = text[i] === '&' ? entity(text, i) : null;
    out += found ? found.text : text[i];
    i = found ? found.end : i + 1;
  }
  return out;
}
