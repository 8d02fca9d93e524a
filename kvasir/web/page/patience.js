/**
 * What is done while nothing comes: waiting as long as the server says, and asking why it is silent.
 * @module
 */
import { SILENCE, run } from './answer.js';
import { ApiError, state } from './api.js';
import { announce } from './session.js';

/**
 * Asks; where the server has no room waits as long as it says, and asks again.
 * @param {import('./answer.js').Task} task @param {AbortSignal} signal @param {() => void} heard
 * @param {(sentence: string) => void} say
 */
export async function patiently(task, signal, heard, say) {
  for (;;) {
    try {
      return await run(task, signal, heard);
    } catch (error) {
      const isFull = error instanceof ApiError && [429, 503].includes(error.status) && error.retryAfter > 0;
      if (!isFull) throw error;
      await countDown(/** @type {ApiError} */ (error), signal, say);
    }
  }
}

/** @param {ApiError} error @param {AbortSignal} signal @param {(sentence: string) => void} say */
async function countDown(error, signal, say) {
  announce(`The server has no room. Asking again in ${error.retryAfter} seconds.`);
  for (let left = error.retryAfter; left > 0; left--) {
    say(`${error.message} Asking again in ${left} s.`);
    await new Promise((resolve) => setTimeout(resolve, 1000));
    if (signal.aborted) throw new DOMException('stopped', 'AbortError');
  }
  say('');
}

/** Says why an answer does not go on, while it does not. */
export class Watch {
  /** @param {(sentence: string) => void} say */
  constructor(say) {
    this.say = say;
    this.last = performance.now();
    this.isSaid = false;
    this.timer = setInterval(() => this.look(), 1000);
  }

  get isSilent() {
    return performance.now() - this.last >= SILENCE;
  }

  heard() {
    this.last = performance.now();
    if (this.isSaid) this.say('');
    this.isSaid = false;
  }

  async look() {
    if (!this.isSilent) return;
    const word = await state();
    if (!this.isSilent) return;
    this.isSaid = true;
    this.say(word === 'ready' ? 'Waiting for the next token…' : `The server says: ${word}. The answer goes on when it can.`);
  }

  end() {
    clearInterval(this.timer);
    this.say('');
  }
}
