/**
 * Why an answer took so long: its time by causes, beside what it would take alone.
 * @module
 */
import { json } from './api.js';
import { show } from './dialogs.js';
import { fill, h } from './dom.js';
import { duration } from './format.js';

/** @type {Record<string, string>} */
const NAMES = {
  before: 'Read and tokenized',
  load: 'Model loaded or started',
  grammar: 'Grammar compiled',
  slots: 'Waited for a place',
  blocks: 'Waited for KV blocks',
  turn: 'Waited for its turn',
  disk: 'KV blocks read from disk',
  prompt: 'Its own prompt',
  answer: 'Its own tokens',
  others_prompts: 'Prompts of others',
  others_answers: 'Answers of others',
  preemption: 'Computed again after a preemption',
  restart: 'Engine restarted',
  machine: 'Slower machine',
  engine: 'Between its steps',
  reader: 'Slow reader',
};
const OWN = new Set(['prompt', 'answer']);

/** @param {string} response as the server named it */
export async function whyDialog(response) {
  const body = h('div', { class: 'why' }, h('p', {}, 'Looking…'));
  show('Where the time went', body);
  try {
    const told = await json(`v1/requests/${encodeURIComponent(response)}/why`);
    const explained = told.choices.filter((/** @type {any} */ choice) => choice.sentence || choice.state === 'forgotten');
    fill(body, explained.map((/** @type {any} */ choice) => choiceOf(choice, told.choices.length > 1)));
  } catch (error) {
    fill(body, h('p', { class: 'trouble' }, /** @type {Error} */ (error).message));
  }
}

/** @param {any} choice @param {boolean} isOne of several */
function choiceOf(choice, isOne) {
  const title = isOne ? h('h3', {}, `Answer ${choice.index + 1}`) : null;
  if (choice.state === 'forgotten') return h('section', {}, title, h('p', {}, 'The server has forgotten it: it remembers the last few thousand.'));
  return h(
    'section',
    {},
    title,
    h('p', { class: 'verdict' }, choice.sentence),
    choice.remedy ? h('p', {}, `What helps: ${choice.remedy}.`) : null,
    waterfall(choice),
    choice.is_truncated ? h('p', { class: 'note' }, 'Early steps are forgotten, and not counted.') : null,
  );
}

/** A table whose bars begin where their cause did. @param {any} choice */
function waterfall(choice) {
  const whole = Math.max(choice.seconds, choice.alone_seconds, 1e-9);
  const rows = choice.parts.map((/** @type {any} */ part) => row(NAMES[part.cause] ?? part.cause, part.at, part.seconds, whole, OWN.has(part.cause) ? 'own' : 'other'));
  return h(
    'table',
    { class: 'waterfall' },
    h('caption', {}, `${duration(choice.seconds)} in all; alone it would take about ${duration(choice.alone_seconds)}.`),
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Cause'), h('th', { scope: 'col' }, 'Time'), h('th', { scope: 'col' }, 'When'))),
    h('tbody', {}, rows, row('Alone, all of it', 0, choice.alone_seconds, whole, 'alone')),
  );
}

/** @param {string} name @param {number} at @param {number} seconds @param {number} whole @param {string} kind */
function row(name, at, seconds, whole, kind) {
  const width = Math.max(0.4, (100 * seconds) / whole);
  const x = Math.min((100 * at) / whole, 100 - width);
  const bar = h('svg', { viewBox: '0 0 100 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, h('rect', { class: kind, x: Math.max(0, x), y: 0, width, height: 8 }));
  return h('tr', {}, h('th', { scope: 'row' }, name), h('td', { class: 'to-right' }, duration(seconds)), h('td', { class: 'bar' }, bar));
}
