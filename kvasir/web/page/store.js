/**
 * Where conversations are kept: this browser's IndexedDB. Nothing of them is on the server.
 * @module
 */

/** @typedef {import('./tree.js').Conversation} Conversation */
/** @typedef {import('./tree.js').Head} Head */
/** @typedef {import('./tree.js').Message} Message */

const HEADS = 'heads';
const MESSAGES = 'messages';
/** Of what each tab tells the others. */
export const news = new BroadcastChannel('kvasir');

/** @type {Promise<IDBDatabase> | null} */
let opened = null;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open('kvasir', 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(HEADS, { keyPath: 'id' });
      request.result.createObjectStore(MESSAGES, { keyPath: 'id' }).createIndex('conversation', 'conversation');
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

/**
 * What `work` asks for, once all of it is done.
 * @template T @param {IDBTransactionMode} mode @param {(heads: IDBObjectStore, messages: IDBObjectStore) => IDBRequest<T> | void} work
 * @returns {Promise<T>}
 */
async function transact(mode, work) {
  const transaction = (await database()).transaction([HEADS, MESSAGES], mode);
  const request = work(transaction.objectStore(HEADS), transaction.objectStore(MESSAGES));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(/** @type {any} */ (request?.result));
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

/** Newest first. @returns {Promise<Head[]>} */
export async function allHeads() {
  const heads = await transact('readonly', (heads) => heads.getAll());
  return heads.sort((a, b) => b.updated - a.updated);
}

/** @param {string} id @returns {Promise<Conversation | null>} */
export async function load(id) {
  const head = await transact('readonly', (heads) => heads.get(id));
  if (!head) return null;
  const found = await transact('readonly', (_, messages) => messages.index('conversation').getAll(id));
  return { head, messages: new Map(found.map((/** @type {Message} */ message) => [message.id, message])) };
}

/** A head and some of its messages. @param {Head} head @param {Message[]} [said] */
export async function save(head, said = []) {
  await transact('readwrite', (heads, messages) => {
    heads.put(head);
    for (const message of said) messages.put(message);
  });
  news.postMessage({ saved: head.id });
}

/** @param {Head} head @param {Message[]} gone */
export async function removeMessages(head, gone) {
  await transact('readwrite', (heads, messages) => {
    heads.put(head);
    for (const message of gone) messages.delete(message.id);
  });
  news.postMessage({ saved: head.id });
}

/** @param {Conversation} conversation */
export async function remove({ head, messages }) {
  await transact('readwrite', (heads, store) => {
    heads.delete(head.id);
    for (const id of messages.keys()) store.delete(id);
  });
  news.postMessage({ removed: head.id });
}

/** Every conversation, with all it has. @returns {Promise<Conversation[]>} */
export async function everything() {
  const heads = await allHeads();
  return (await Promise.all(heads.map((head) => load(head.id)))).filter((each) => each !== null);
}

/** Whether what cannot be kept is so for want of space. @param {any} error */
export function isFull(error) {
  return error?.name === 'QuotaExceededError';
}
