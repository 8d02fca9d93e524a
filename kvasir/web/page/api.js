/**
 * Requests to the server this page came from, with its user's key.
 * @module
 */

/** What went wrong. `status` 0: nobody answered. */
export class ApiError extends Error {
  /** @param {number} status @param {string} message @param {string} code @param {number} [retryAfter] seconds */
  constructor(status, message, code, retryAfter = 0) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

const ROOT = new URL('../../', import.meta.url);
/** Of the server: this file is at `ui/VERSION/api.js`. */
const KEY = 'kvasir.key';

/** In this tab alone: no other reads it, and it ends with the tab. */
export const key = {
  get value() {
    return sessionStorage.getItem(KEY) ?? '';
  },
  set value(/** @type {string} */ said) {
    if (said) sessionStorage.setItem(KEY, said);
    else sessionStorage.removeItem(KEY);
  },
};

/** @param {string} path without a slash before it */
export function address(path) {
  return new URL(path, ROOT).href;
}

/**
 * @param {string} path @param {any} [body] JSON of a POST @param {AbortSignal} [signal]
 * @returns {Promise<Response>} which is well; else raises ApiError
 */
export async function ask(path, body, signal) {
  /** @type {Record<string, string>} */
  const headers = {};
  if (key.value) headers.authorization = `Bearer ${key.value}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  let response;
  try {
    response = await fetch(address(path), {
      method: body === undefined ? 'GET' : 'POST',
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: 'no-store',
      credentials: 'omit',
      redirect: 'error',
      referrerPolicy: 'no-referrer',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, 'The server does not answer.', 'gone');
  }
  if (!response.ok) throw await failure(response);
  return response;
}

/** @param {string} path @param {any} [body] @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function json(path, body, signal) {
  return (await ask(path, body, signal)).json();
}

/** @param {Response} response */
async function failure(response) {
  const text = await response.text();
  let told;
  try {
    told = JSON.parse(text).error ?? {};
  } catch {
    told = {};
  }
  const seconds = Number(response.headers.get('retry-after') ?? 0);
  const message = told.message ?? `The server answered ${response.status}.`;
  return new ApiError(response.status, message, told.code ?? '', seconds);
}

/** What an event of a stream says in the place of an answer. @param {any} event */
export function failureOf(event) {
  return event.error ? new ApiError(500, event.error.message, event.error.code ?? '') : null;
}

/** A word for how the server is, of whom nobody needs a key to ask. @returns {Promise<string>} */
export async function state() {
  try {
    const response = await fetch(address('ready'), { cache: 'no-store', credentials: 'omit' });
    return (await response.json()).status;
  } catch {
    return 'gone';
  }
}

/** Whether the server has another version of this page than this. @returns {Promise<boolean>} */
export async function isNewer() {
  try {
    const response = await fetch(address('ui/'), { cache: 'no-store', credentials: 'omit' });
    const tag = (response.headers.get('etag') ?? '').replace(/^W\/|"/g, ''); // a proxy may call it weak
    return tag !== '' && !import.meta.url.includes(`/${tag}/`);
  } catch {
    return false;
  }
}

/** The same request for a shell. @param {string} path @param {any} body */
export function curlOf(path, body) {
  const quoted = (/** @type {string} */ text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const lines = [`curl ${quoted(address(path))}`, "-H 'Content-Type: application/json'"];
  if (key.value) lines.push('-H "Authorization: Bearer $KVASIR_API_KEY"');
  lines.push(`-d ${quoted(JSON.stringify(body, null, 2))}`);
  return lines.join(' \\\n  ');
}
