/**
 * Conversations as trees: each message has the one before it as its parent, and what is shown is the
 * path to one leaf. All functions are pure but for ids and times.
 * @module
 */

/**
 * @typedef {{ name: string, media: string, text?: string, data?: string }} Attachment
 * @typedef {{ id: string, conversation: string, parent: string | null, role: 'user' | 'assistant',
 *   content: string, reasoning?: string, calls?: Call[], attachments?: Attachment[], time: number,
 *   model?: string, response?: string, finish?: string, error?: string, code?: string, stats?: Stats,
 *   promptIds?: number[], ids?: number[], tops?: Top[][], settings?: Record<string, any> }} Message
 * @typedef {{ name: string, arguments: string }} Call
 * @typedef {{ id: number, text: string, logprob: number }} Top
 * @typedef {{ first?: number, seconds?: number, tokens?: number, prompt?: number, cached?: number }} Stats
 * @typedef {{ id: string, title: string, created: number, updated: number, system: string,
 *   settings: Record<string, any>, selected: string | null }} Head
 * @typedef {{ head: Head, messages: Map<string, Message> }} Conversation
 */

export const FORMAT = 'kvasir.conversations';
const MAX_TITLE = 60;
/** Fields of a request that are no settings of the page. */
const NOT_DRAWN = new Set(['model', 'messages', 'prompt', 'user', 'metadata']);

/** Random, also where a page is not served over TLS and has no `randomUUID`. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** @param {Record<string, any>} settings @param {string} [system] @returns {Conversation} */
export function newConversation(settings = {}, system = '') {
  const now = Date.now();
  const head = { id: newId(), title: '', created: now, updated: now, system, settings, selected: null };
  return { head, messages: new Map() };
}

/** @param {Conversation} conversation @param {string | null} parent @param {Partial<Message>} said @returns {Message} */
export function newMessage(conversation, parent, said) {
  return {
    id: newId(), conversation: conversation.head.id, parent, role: 'user', content: '', time: Date.now(), ...said,
  };
}

/** With one more message, which is the selected leaf unless `isAside`.
 * @param {Conversation} conversation @param {Message} message @param {boolean} [isAside] @returns {Conversation} */
export function withMessage(conversation, message, isAside = false) {
  const messages = new Map(conversation.messages).set(message.id, message);
  const title = conversation.head.title || (message.role === 'user' ? titleOf(message.content) : '');
  const selected = isAside ? conversation.head.selected : message.id;
  return { head: { ...conversation.head, title, selected, updated: message.time }, messages };
}

/** @param {string} content */
export function titleOf(content) {
  const line = content.trim().split('\n')[0].replace(/\s+/g, ' ');
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
}

/** From the first message to `leaf`. @param {Conversation} conversation @param {string | null} [leaf] @returns {Message[]} */
export function pathTo(conversation, leaf = conversation.head.selected) {
  /** @type {Message[]} */
  const found = [];
  const seen = new Set();
  for (let id = leaf; id !== null && !seen.has(id); ) {
    seen.add(id);
    const message = conversation.messages.get(id);
    if (!message) break;
    found.push(message);
    id = message.parent;
  }
  return found.reverse();
}

/** By parents, of messages that do not change. @type {WeakMap<Map<string, Message>, Map<string | null, Message[]>>} */
const CHILDREN = new WeakMap();

/** In the order of their times. @param {Conversation} conversation @param {string | null} parent @returns {Message[]} */
export function childrenOf({ messages }, parent) {
  let index = CHILDREN.get(messages);
  if (!index) {
    index = new Map();
    for (const message of messages.values()) {
      const siblings = index.get(message.parent);
      if (siblings) siblings.push(message);
      else index.set(message.parent, [message]);
    }
    for (const siblings of index.values()) siblings.sort((a, b) => a.time - b.time || (a.id < b.id ? -1 : 1));
    CHILDREN.set(messages, index);
  }
  return index.get(parent) ?? [];
}

/** Those that `message` is one of. @param {Conversation} conversation @param {Message} message */
export function siblingsOf(conversation, message) {
  return childrenOf(conversation, message.parent);
}

/** The newest leaf below a message: what is shown when it is chosen.
 * @param {Conversation} conversation @param {string} id */
export function leafBelow(conversation, id) {
  for (let at = id; ; ) {
    const next = childrenOf(conversation, at).at(-1);
    if (!next) return at;
    at = next.id;
  }
}

/** @param {Conversation} conversation @param {string | null} selected @returns {Conversation} */
export function selecting(conversation, selected) {
  return { ...conversation, head: { ...conversation.head, selected } };
}

/** Without `id` and what follows it; and what was taken away.
 * @param {Conversation} conversation @param {string} id @returns {[Conversation, Message[]]} */
export function without(conversation, id) {
  const gone = below(conversation, id);
  const messages = new Map(conversation.messages);
  for (const message of gone) messages.delete(message.id);
  const parent = conversation.messages.get(id)?.parent ?? null;
  const kept = { ...conversation, messages };
  const selected = conversation.head.selected;
  if (selected !== null && messages.has(selected)) return [kept, gone];
  const sibling = childrenOf(kept, parent).at(-1);
  return [selecting(kept, sibling ? leafBelow(kept, sibling.id) : parent), gone];
}

/** A message and all that follow it. @param {Conversation} conversation @param {string} id */
function below(conversation, id) {
  const first = conversation.messages.get(id);
  const found = first ? [first] : [];
  for (let i = 0; i < found.length; i++) found.push(...childrenOf(conversation, found[i].id));
  return found;
}

/** What the server is sent. @param {string} system @param {Message[]} path @returns {any[]} */
export function toRequest(system, path) {
  const said = path.map((message) => ({ role: message.role, content: contentOf(message) }));
  return system ? [{ role: 'system', content: system }, ...said] : said;
}

/** @param {Message} message */
function contentOf(message) {
  const files = message.attachments ?? [];
  const texts = files.filter((file) => file.text !== undefined);
  const images = files.filter((file) => file.data !== undefined);
  const quoted = texts.map((file) => `${file.name}:\n${fenced(file.text ?? '')}`);
  const text = [...quoted, message.content].filter(Boolean).join('\n\n');
  if (!images.length) return text;
  const parts = images.map((file) => ({ type: 'image_url', image_url: { url: file.data } }));
  return [...parts, { type: 'text', text }];
}

/** @param {string} text */
function fenced(text) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((run) => run[0].length));
  const fence = '`'.repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}

/** Whether it has every word of `query`. @param {string} query @param {Head} head @param {Iterable<Message>} messages */
export function matches(query, head, messages) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = [head.title, ...[...messages].map((message) => message.content)].map((x) => x.toLowerCase());
  return words.every((word) => texts.some((text) => text.includes(word)));
}

/** @param {Conversation[]} conversations */
export function exported(conversations) {
  return {
    format: FORMAT,
    version: 1,
    conversations: conversations.map(({ head, messages }) => ({
      ...head,
      messages: [...messages.values()].map(({ conversation, tops, promptIds, ids, ...said }) => said),
    })),
  };
}

/**
 * Of a file that somebody exported; each is a new one, so that nothing is overwritten.
 * @param {any} told @returns {Conversation[]} raises Error for another format
 */
export function imported(told) {
  if (told?.format !== FORMAT || told.version !== 1 || !Array.isArray(told.conversations)) {
    throw new Error(`This is no file of format ${FORMAT}, version 1.`);
  }
  return told.conversations.map(importedOne);
}

/** @param {any} told @returns {Conversation} */
function importedOne(told) {
  const conversation = newConversation(plain(told.settings), text(told.system));
  /** @type {Map<any, string>} */
  const ids = new Map((told.messages ?? []).map((/** @type {any} */ each) => [each.id, newId()]));
  const messages = new Map();
  for (const each of told.messages ?? []) {
    /** @type {'user' | 'assistant'} */
    const role = each.role === 'assistant' ? 'assistant' : 'user';
    const parent = ids.get(each.parent) ?? null;
    const id = /** @type {string} */ (ids.get(each.id));
    const said = { role, content: text(each.content), reasoning: text(each.reasoning) || undefined };
    const more = { model: text(each.model) || undefined, finish: text(each.finish) || undefined };
    const time = Number(each.time) || Date.now();
    const attachments = (each.attachments ?? []).map(importedFile);
    const calls = importedCalls(each.calls);
    messages.set(id, newMessage(conversation, parent, { id, ...said, ...more, calls, time, attachments }));
  }
  cutCircles(messages);
  const selected = ids.get(told.selected) ?? null;
  const head = { ...conversation.head, title: text(told.title).slice(0, 200), created: Number(told.created) || Date.now() };
  const made = { head: { ...head, selected }, messages };
  const roots = childrenOf(made, null);
  return selected || !roots.length ? made : selecting(made, leafBelow(made, roots[0].id));
}

/** Each message has a way to a first one: who follows a circle comes to no end.
 * @param {Map<string, Message>} messages */
function cutCircles(messages) {
  const sound = new Set();
  for (const start of messages.values()) {
    const way = new Set();
    /** @type {Message | undefined} */
    let at = start;
    for (; at && !sound.has(at.id); at = messages.get(at.parent ?? '')) {
      if (way.has(at.id)) at.parent = null;
      way.add(at.id);
    }
    for (const id of way) sound.add(id);
  }
}

/** @param {any} calls @returns {Call[] | undefined} */
function importedCalls(calls) {
  if (!Array.isArray(calls)) return undefined;
  return calls.filter((each) => text(each?.name)).map((each) => ({ name: each.name, arguments: text(each.arguments) }));
}

/** @param {any} file @returns {Attachment} */
function importedFile(file) {
  const isImage = typeof file.data === 'string' && isPicture(file.data);
  const what = isImage ? { data: file.data } : { text: text(file.text) };
  return { name: text(file.name).slice(0, 200), media: text(file.media), ...what };
}

/** @param {any} value */
function text(value) {
  return typeof value === 'string' ? value : '';
}

/** Whether it can be shown: base64 throughout. @param {string} data */
function isPicture(data) {
  const body = /^data:image\/[a-z+.-]+;base64,([A-Za-z0-9+/]*={0,2})$/.exec(data)?.[1];
  return body !== undefined && body.length % 4 === 0;
}

/** Numbers, words, and words that end an answer; what would change more than the answer is left out. @param {any} settings */
function plain(settings) {
  const isWords = (/** @type {any} */ value) => Array.isArray(value) && value.every((each) => typeof each === 'string');
  const isPlain = (/** @type {any} */ value) => ['number', 'string'].includes(typeof value) || isWords(value);
  return Object.fromEntries(Object.entries(settings ?? {}).filter(([name, value]) => !NOT_DRAWN.has(name) && isPlain(value)));
}
