/**
 * Looking inside: each token of an answer with what else was likely there. Choosing one of these
 * branches from exactly the ids before it.
 * @module
 */
import { json } from './api.js';
import { fill, h } from './dom.js';
import { percent, visible } from './format.js';

/** @typedef {import('./tree.js').Top} Top */
/** @typedef {import('./tree.js').Message} Message */

/** Texts of ids that came without: of one model. @type {Map<number, string>} */
const TEXTS = new Map();

/**
 * @param {Element} body @param {Message} message
 * @param {(m: Message, at: number, top: Top) => void} branch
 */
export function tokensOf(body, message, branch) {
  const tops = (message.tops ?? []).slice(0, message.ids?.length);
  const list = h('div', { class: 'tops', role: 'group', 'aria-label': 'Likely here' });
  const show = async (/** @type {number} */ at) => {
    tokens.forEach((token, i) => token.setAttribute('aria-selected', String(i === at)));
    await name(tops[at]);
    fill(list, choices(tops[at]).map((top, i) => choice(top, i === 0, () => branch(message, at, top))));
  };
  const tokens = tops.map((top, at) => h('span', {
    class: `token sure-${sureness(top[0].logprob)}`,
    role: 'option',
    tabindex: at ? -1 : 0,
    onfocus: () => show(at),
    onmouseenter: () => show(at),
    onkeydown: (/** @type {KeyboardEvent} */ event) => move(event, tokens, at, list),
  }, inFlow(top[0])));
  fill(body, h('div', { class: 'tokens', role: 'listbox', 'aria-label': 'Tokens: arrow keys move, down chooses' }, tokens), list);
  if (tops.length) name(tops.map((top) => top[0])).then(() => tokens.forEach((token, i) => (token.textContent = inFlow(tops[i][0]))));
}

/** @param {KeyboardEvent} event @param {any[]} tokens @param {number} at @param {Element} list */
function move(event, tokens, at, list) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (by) tokens[at + by]?.focus();
  else if (event.key === 'ArrowDown') /** @type {any} */ (list.querySelector('button'))?.focus();
  else return;
  event.preventDefault();
}

/** The likeliest, each once; the drawn one is first in `tops`. @param {Top[]} tops */
function choices(tops) {
  const seen = new Map(tops.map((top) => [top.id, top]));
  return [...seen.values()].sort((a, b) => Number(b.id === tops[0].id) - Number(a.id === tops[0].id) || b.logprob - a.logprob);
}

/** @param {Top} top @param {boolean} isDrawn @param {() => void} branch */
function choice(top, isDrawn, branch) {
  const label = isDrawn ? 'drawn' : 'branch here';
  return h('button', {
    type: 'button',
    class: 'quiet top',
    disabled: isDrawn,
    title: `id ${top.id}: ${label}`,
    onclick: branch,
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      const target = /** @type {any} */ (event.currentTarget);
      if (event.key === 'ArrowDown') target.nextSibling?.focus();
      if (event.key === 'ArrowUp') target.previousSibling?.focus();
    },
  }, h('code', {}, visible(textOf(top))), ' ', percent(Math.exp(top.logprob)));
}

/** Finds the texts of ids that came alone. @param {Top[]} tops */
async function name(tops) {
  const unknown = tops.filter((top) => !top.text && !TEXTS.has(top.id));
  const ids = [...new Set(unknown.map((top) => top.id))].slice(0, 64);
  await Promise.all(ids.map(async (id) => {
    const told = await json('detokenize', { tokens: [id] }).catch(() => null);
    if (told) TEXTS.set(id, told.prompt);
  }));
}

/** @param {Top} top */
function textOf(top) {
  return top.text || TEXTS.get(top.id) || '';
}

/** As it stands in the text; what could not be seen there is made visible. @param {Top} top */
function inFlow(top) {
  const text = textOf(top);
  return text.trim() && !text.includes('\n') ? text : visible(text);
}

/** 0 for a token that was hardly chosen, to 4 for one without doubt. @param {number} logprob */
function sureness(logprob) {
  const share = Math.exp(logprob);
  return [0.1, 0.3, 0.6, 0.9].filter((bound) => share >= bound).length;
}

/** An answer up to token `at`, and what it goes on with. @param {Message} message @param {number} at @param {Top} top */
export async function prefix(message, at, top) {
  const ids = [...(message.ids ?? []).slice(0, at), top.id];
  return { text: (await json('detokenize', { tokens: ids })).prompt, ids };
}
