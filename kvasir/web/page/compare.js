/**
 * Two settings side by side: the same prompt and seed, and where the answers part.
 * @module
 */
import { chatTask, rate, run } from './answer.js';
import { firstDifference } from './difference.js';
import { fill, h } from './dom.js';
import { decimal, duration } from './format.js';
import { announce, session } from './session.js';
import { settingsForm } from './settings.js';
import { newConversation, newMessage } from './tree.js';

const SEED = 1;
/** Of who says none: without one there would be nothing to compare. */

class Compare extends HTMLElement {
  connectedCallback() {
    if (session.facts) this.show();
    else session.addEventListener('change', () => this.show(), { once: true });
  }

  show() {
    this.prompt = h('textarea', { rows: 3, 'aria-label': 'Prompt', placeholder: 'What both are asked' });
    this.button = h('button', { type: 'submit', class: 'primary' }, 'Ask both');
    this.verdict = h('p', { class: 'verdict', role: 'status' });
    this.sides = [new Side('A', { temperature: 0 }), new Side('B', { temperature: 1 })];
    this.append(
      h('h1', {}, 'Compare two settings'),
      h('form', { class: 'edit', onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); this.ask(); } }, this.prompt, this.button),
      this.verdict,
      h('div', { class: 'sides' }, this.sides.map((side) => side.node)),
    );
  }

  disconnectedCallback() {
    this.stops?.abort();
  }

  async ask() {
    if (this.stops) {
      this.stops.abort();
      return;
    }
    const stops = (this.stops = new AbortController());
    this.button.textContent = 'Stop';
    this.verdict.textContent = '';
    await Promise.all((this.sides ?? []).map((side) => side.ask(this.prompt.value, stops.signal)));
    this.stops = undefined;
    this.button.textContent = 'Ask both';
    this.judge();
  }

  /** Marks the first token that differs. */
  judge() {
    const [a, b] = this.sides ?? [];
    const at = firstDifference(a.pieces, b.pieces);
    for (const side of [a, b]) side.mark(at);
    this.verdict.textContent = at < 0 ? 'Both answers are the same.' : `They part at token ${at + 1}.`;
    announce(this.verdict.textContent);
  }
}

class Side {
  /** @param {string} name @param {Record<string, any>} settings */
  constructor(name, settings) {
    this.settings = settings;
    /** The tokens of its answer. @type {{ id: number, text: string }[]} */
    this.pieces = [];
    this.text = h('div', { class: 'body plain', dir: 'auto' });
    this.figures = h('p', { class: 'figures' });
    const form = h('details', { class: 'panel' }, h('summary', {}, `Settings of ${name}`), settingsForm(settings, (now) => { this.settings = now; }));
    this.node = h('section', { class: 'side-by', 'aria-label': name }, h('h2', {}, name), form, this.text, this.figures);
  }

  /** @param {string} prompt @param {AbortSignal} signal */
  async ask(prompt, signal) {
    const conversation = newConversation();
    const target = newMessage(conversation, null, { role: 'assistant' });
    const { n: _, ...settings } = this.settings;
    const asked = { model: session.model, seed: SEED, ...settings, tops: 1 };
    fill(this.text);
    try {
      await run(chatTask([{ role: 'user', content: prompt }], asked, [target]), signal, () => {
        this.text.textContent = (target.reasoning ?? '') + target.content;
      });
    } catch (error) {
      if (!signal.aborted) this.text.textContent = /** @type {Error} */ (error).message;
    }
    this.pieces = (target.tops ?? []).map((tops) => tops[0]);
    const speed = rate(target.stats);
    this.figures.textContent = speed ? `${decimal(speed)} tok/s · first after ${duration(target.stats?.first)} · ${target.stats?.tokens} tokens` : '';
  }

  /** @param {number} at of a token; -1: none */
  mark(at) {
    if (at < 0 || !this.pieces.length) return;
    const text = (/** @type {number} */ from, /** @type {number} */ to) => this.pieces.slice(from, to).map((each) => each.text).join('');
    fill(this.text, text(0, at), h('mark', {}, text(at, at + 1) || '∎'), h('span', { class: 'after' }, text(at + 1, this.pieces.length)));
  }
}

customElements.define('k-compare', Compare);
