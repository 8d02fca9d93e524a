/**
 * The prompt as the model sees it: the template's text in tokens, with their ids, special ones, and
 * what of it was cached.
 * @module
 */
import { json } from './api.js';
import { show } from './dialogs.js';
import { fill, h } from './dom.js';
import { count, visible } from './format.js';
import { session } from './session.js';

const MAX_SHOWN = 4000;

/** @param {any[]} messages @param {import('./tree.js').Stats} [stats] of the answer to them */
export async function promptDialog(messages, stats) {
  const body = h('div', { class: 'inspector' }, h('p', {}, 'Rendering…'));
  show('The prompt as the model sees it', body);
  try {
    const [told, vocabulary] = await Promise.all([
      json('tokenize', { model: session.model, messages, with_pieces: true }),
      json('tokenizer_info'),
    ]);
    fill(body, prompt(told, new Set(vocabulary.special_tokens), stats), template(vocabulary.chat_template));
  } catch (error) {
    fill(body, h('p', { class: 'trouble' }, /** @type {Error} */ (error).message));
  }
}

/** @param {any} told @param {Set<string>} special @param {import('./tree.js').Stats} [stats] */
function prompt(told, special, stats) {
  const cached = stats?.cached ?? 0;
  const tokens = told.tokens.slice(0, MAX_SHOWN);
  const nSpecial = told.tokens.filter((/** @type {any} */ each) => special.has(each.piece)).length;
  const answered = stats?.prompt !== undefined;
  return h(
    'section',
    {},
    h('p', {}, `${count(told.count)} of ${count(told.max_model_len)} tokens, ${count(nSpecial)} of them special. `,
      answered ? `The last answer found ${count(cached)} in the cache.` : 'What is cached is known once it was asked.'),
    h('p', { class: 'legend' }, h('span', { class: 'token special' }, 'special'), answered ? h('span', { class: 'token cached' }, 'cached') : null),
    h('div', { class: 'tokens', tabindex: 0, 'aria-label': 'Tokens' }, tokens.map((/** @type {any} */ each, /** @type {number} */ i) => token(each, i < cached, special))),
    told.tokens.length > MAX_SHOWN ? h('p', { class: 'note' }, `The first ${count(MAX_SHOWN)} are shown.`) : null,
  );
}

/** @param {any} each @param {boolean} isCached @param {Set<string>} special */
function token(each, isCached, special) {
  const isBytes = Array.isArray(each.piece);
  const text = isBytes ? each.piece.map((/** @type {number} */ byte) => `‹${byte.toString(16)}›`).join('') : each.piece;
  const kind = `token${special.has(each.piece) ? ' special' : ''}${isCached ? ' cached' : ''}`;
  return h('span', { class: kind, title: `id ${each.id}` }, visible(text), h('sub', {}, each.id));
}

/** @param {string | null} text */
function template(text) {
  if (!text) return h('p', {}, 'The model has no chat template.');
  return h('details', {}, h('summary', {}, 'Chat template'), h('pre', { tabindex: 0 }, text));
}
