/**
 * One message as it is shown, and what can be done with it.
 * @module
 */
import { rate } from './answer.js';
import { pictureOf } from './composer.js';
import { copy as copyText } from './dialogs.js';
import { fill, h } from './dom.js';
import { count, decimal, duration } from './format.js';
import { render } from './markdown/render.js';
import { MarkdownStream } from './markdown/stream.js';
import { tokensOf } from './tokens.js';

/** @typedef {import('./tree.js').Message} Message */
/**
 * @typedef {{ edit: (m: Message) => void, again: (m: Message) => void, goOn: (m: Message) => void,
 *   remove: (m: Message) => void, turn: (m: Message, by: number) => void, why: (m: Message) => void,
 *   curl: (m: Message) => void, inspect: (m: Message) => void,
 *   branch: (m: Message, at: number, top: import('./tree.js').Top) => void }} Does
 */

export class MessageView {
  /** @param {Message} message @param {{ index: number, of: number }} place among its siblings @param {Does} does */
  constructor(message, place, does) {
    this.message = message;
    this.does = does;
    this.isLive = false;
    this.isInside = false;
    this.markdown = new MarkdownStream();
    this.isQueued = false;
    this.thought = h('div', { class: 'thought-text' });
    this.thoughts = h('details', { class: 'thought' }, h('summary', {}, 'Reasoning'), this.thought);
    this.calls = h('div', { class: 'calls' });
    this.body = h('div', { class: 'body', dir: 'auto' });
    this.trouble = h('p', { class: 'trouble', role: 'alert' });
    this.figures = h('span', { class: 'figures' });
    this.actions = h('div', { class: 'actions' });
    const isOwn = message.role === 'user';
    this.node = h(
      'article',
      { class: `message ${message.role}`, 'data-id': message.id, tabindex: -1, 'aria-label': isOwn ? 'You' : `Answer${message.model ? ` of ${message.model}` : ''}` },
      this.thoughts,
      this.calls,
      this.body,
      this.trouble,
      h('footer', {}, place.of > 1 ? this.turner(place) : null, this.actions, this.figures),
    );
    this.showActions();
    this.show();
  }

  get isOwn() {
    return this.message.role === 'user';
  }

  /** @param {{ index: number, of: number }} place */
  turner({ index, of }) {
    const turn = (/** @type {number} */ by, /** @type {string} */ label, /** @type {string} */ sign) =>
      h('button', { type: 'button', class: 'quiet', 'aria-label': label, disabled: index + by < 0 || index + by >= of, onclick: () => this.does.turn(this.message, by) }, sign);
    return h('span', { class: 'turner' }, turn(-1, 'Version before', '‹'), `${index + 1}/${of}`, turn(1, 'Next version', '›'));
  }

  showActions() {
    const { does, message } = this;
    const act = (/** @type {string} */ label, /** @type {(m: Message) => void} */ does) =>
      h('button', { type: 'button', class: 'quiet', onclick: () => does(message) }, label);
    const copy = act('Copy', () => copyText(message.content));
    const own = [act('Edit', does.edit), copy, act('Delete', does.remove)];
    const answers = [
      act('Again', does.again),
      message.finish === 'stop' ? null : act('Continue', does.goOn),
      copy,
      message.response ? act('Why', does.why) : null,
      message.tops?.length ? act('Inside', () => this.look()) : null,
      act('Prompt', does.inspect),
      act('curl', does.curl),
      act('Delete', does.remove),
    ];
    fill(this.actions, this.isLive ? null : this.isOwn ? own : answers);
  }

  /** @param {boolean} isLive whether more of it is coming */
  live(isLive) {
    this.isLive = isLive;
    this.node.setAttribute('aria-busy', String(isLive));
    this.node.classList.toggle('live', isLive);
    this.showActions();
    this.show();
  }

  /** There is more to show: at the next frame, once. */
  changed() {
    if (this.isQueued) return;
    this.isQueued = true;
    requestAnimationFrame(() => {
      this.isQueued = false;
      this.show();
    });
  }

  show() {
    const { message } = this;
    this.trouble.textContent = message.error ?? '';
    this.trouble.hidden = !message.error;
    this.thoughts.hidden = !message.reasoning;
    if (message.reasoning && this.thought.textContent !== message.reasoning) this.thought.textContent = message.reasoning;
    this.showCalls();
    this.showFigures();
    if (this.isOwn) this.showOwn();
    else if (this.isInside && !this.isLive) tokensOf(this.body, message, this.does.branch);
    else this.showText();
  }

  showText() {
    const { content } = this.message;
    if (!content.startsWith(this.markdown.text)) this.markdown = new MarkdownStream();
    if (content.length > this.markdown.text.length) this.markdown.append(content.slice(this.markdown.text.length));
    render(this.body, this.markdown.nodes());
  }

  showOwn() {
    const { attachments = [], content } = this.message;
    const files = attachments.map((file) => (file.data ? pictureOf(file) : h('span', { class: 'file' }, file.name)));
    fill(this.body, files.length ? h('div', { class: 'files' }, files) : null, h('div', { class: 'said' }, content));
  }

  showCalls() {
    const calls = this.message.calls ?? [];
    this.calls.hidden = !calls.length;
    fill(this.calls, calls.map((call) => h('details', { open: true }, h('summary', {}, `Calls ${call.name}`), h('pre', {}, call.arguments))));
  }

  showFigures() {
    const { stats, finish } = this.message;
    if (this.isOwn || !stats) return;
    const speed = rate(stats);
    const told = [
      speed && `${decimal(speed, speed < 10 ? 1 : 0)} tok/s`,
      stats.first !== undefined && `first after ${duration(stats.first)}`,
      stats.tokens && `${count(stats.tokens)} tokens`,
      stats.prompt && `${count(stats.cached ?? 0)} of ${count(stats.prompt)} cached`,
      finish === 'length' && 'cut at its length',
    ];
    this.figures.textContent = told.filter(Boolean).join(' · ');
  }

  /** Turns between the text and its tokens. */
  look() {
    this.isInside = !this.isInside;
    fill(this.body);
    this.markdown = new MarkdownStream();
    render(this.body, []);
    this.show();
  }
}
