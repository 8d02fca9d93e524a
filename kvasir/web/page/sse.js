/**
 * Server-sent events (HTML standard, section 9.2) of a response: their data, as they arrive.
 * @module
 */

/** Takes text as it comes, and gives the data of whole events. */
export class EventReader {
  constructor() {
    this.rest = '';
    /** @type {string[]} */
    this.data = [];
  }

  /** @param {string} text @returns {string[]} */
  read(text) {
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? '';
    /** @type {string[]} */
    const events = [];
    for (const line of lines) {
      if (line.startsWith('data:')) this.data.push(line.slice(line[5] === ' ' ? 6 : 5));
      else if (line === '' && this.data.length) {
        events.push(this.data.join('\n'));
        this.data = [];
      }
    }
    return events;
  }
}

/**
 * The JSON of each event, and `{ done: true }` at the end: without it the connection broke.
 * @param {ReadableStream<Uint8Array>} body @returns {AsyncGenerator<any>}
 */
export async function* events(body) {
  const reader = new EventReader();
  const decoder = new TextDecoder();
  const bytes = body.getReader();
  try {
    for (;;) {
      const { value, done } = await bytes.read();
      if (done) return;
      for (const data of reader.read(decoder.decode(value, { stream: true }))) {
        if (data === '[DONE]') {
          yield { done: true };
          return;
        }
        yield JSON.parse(data);
      }
    }
  } finally {
    bytes.cancel().catch(() => {});
  }
}
