/**
 * Colours of code: ranges of its text that CSS paints (CSS Custom Highlight API). No node is made.
 * @module
 */

const WORDS =
  'abstract and as assert async await base bool boolean break byte case catch char class const ' +
  'constexpr continue def default defer del delete do double elif else end enum except export extends ' +
  'extern false final finally float fn for from func function global go if impl implements import in ' +
  'instanceof int interface is lambda let local long loop match mod module mut namespace new nil none ' +
  'nonlocal not null or package pass private protected pub public raise ref return select self short ' +
  'static string struct super switch template then this throw trait true try type typedef typeof ' +
  'undefined union unless unsafe until use using var virtual void volatile when where while with yield ' +
  'None True False echo esac fi done elsif begin select insert update where create table join';
const KEYWORDS = new Set(WORDS.split(' '));
const HASHED = new Set('py python sh bash zsh shell rb ruby yaml yml toml r pl perl make makefile dockerfile ini conf'.split(' '));
const DASHED = new Set('sql lua hs haskell ada'.split(' '));
const NAMES = ['comment', 'string', 'number', 'keyword', 'call'];
const MAX_CHARACTERS = 50_000;
const REST = '|("(?:\\\\.|[^"\\\\\\n])*"|\'(?:\\\\.|[^\'\\\\\\n])*\'|`(?:\\\\.|[^`\\\\])*`)|\\b(0[xX][\\da-fA-F]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\b|\\b([A-Za-z_]\\w*)\\b(\\s*\\()?';

/**
 * Parts of `text` that are something else than plain: kind, begin and end.
 * @param {string} text @param {string} language @returns {[string, number, number][]}
 */
export function parts(text, language) {
  const line = HASHED.has(language) ? '#' : DASHED.has(language) ? '--' : '\\/\\/';
  const sign = new RegExp(`(${line}[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$))${REST}`, 'g');
  /** @type {[string, number, number][]} */
  const found = [];
  for (const match of text.slice(0, MAX_CHARACTERS).matchAll(sign)) {
    const at = match.index;
    const [whole, comment, string, number, word, call] = match;
    if (comment) found.push(['comment', at, at + whole.length]);
    else if (string) found.push(['string', at, at + whole.length]);
    else if (number) found.push(['number', at, at + whole.length]);
    else if (KEYWORDS.has(word)) found.push(['keyword', at, at + word.length]);
    else if (call) found.push(['call', at, at + word.length]);
  }
  return found;
}

/** Paints all code below `root`, and nothing else any more. @param {ParentNode} root */
export function paint(root) {
  if (!globalThis.CSS || !('highlights' in CSS)) return;
  /** @type {Map<string, Highlight>} */
  const kinds = new Map(NAMES.map((name) => [name, new Highlight()]));
  for (const code of root.querySelectorAll('.code code')) {
    const text = /** @type {Text | null} */ (code.firstChild);
    if (!text) continue;
    for (const [kind, begin, end] of parts(text.data, (code.getAttribute('data-kind') ?? '').toLowerCase())) {
      kinds.get(kind)?.add(new StaticRange({ startContainer: text, startOffset: begin, endContainer: text, endOffset: end }));
    }
  }
  for (const [name, highlight] of kinds) CSS.highlights.set(name, highlight);
}
