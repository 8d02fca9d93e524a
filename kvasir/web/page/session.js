/**
 * What the parts of the page have in common: what the server said of itself, and what to tell the user.
 * @module
 */
import { json } from './api.js';
import { find } from './dom.js';

/**
 * @typedef {{ version: string, models: { id: string, max_model_len: number, sees: boolean }[],
 *   fields: Field[], max_n: number, max_logprobs: number, max_images: number, max_body_bytes: number,
 *   block_size: number, max_num_seqs: number, drafter: string, scopes: string[] }} Facts
 * @typedef {{ name: string, kind: 'int' | 'float', default: number, low: number, high: number,
 *   above_low: boolean, help: string }} Field
 */

class Session extends EventTarget {
  constructor() {
    super();
    /** @type {Facts | null} */
    this.facts = null;
    /** The model that is asked. */
    this.model = localStorage.getItem('kvasir.model') ?? '';
  }

  /** Asks the server about itself; raises ApiError. */
  async open() {
    this.facts = /** @type {Facts} */ (await json('v1/page'));
    if (!this.facts.models.some((each) => each.id === this.model)) this.model = this.facts.models[0].id;
    this.changed();
  }

  /** @param {string} model */
  choose(model) {
    this.model = model;
    localStorage.setItem('kvasir.model', model);
    this.changed();
  }

  get own() {
    return this.facts?.models.find((each) => each.id === this.model) ?? null;
  }

  changed() {
    this.dispatchEvent(new Event('change'));
  }
}

export const session = new Session();

/** Says a sentence to who listens instead of looking. @param {string} sentence */
export function announce(sentence) {
  const region = find('#announcer');
  region.textContent = '';
  requestAnimationFrame(() => (region.textContent = sentence));
}
