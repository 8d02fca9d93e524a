/**
 * An answer as it comes: events of a stream, told to the messages that they belong to.
 * @module
 */
import { ApiError, ask, failureOf } from './api.js';
import { events } from './sse.js';

/** @typedef {import('./tree.js').Message} Message */
/** @typedef {{ path: string, body: any, targets: Message[] }} Task */

const CHAT = 'v1/chat/completions';
const TEXT = 'v1/completions';
/** Asked of every answer: its tokens' ids, so that one can go on from any of them. */
const TOLD = { stream: true, stream_options: { include_usage: true }, return_token_ids: true };
/** How long a stream may be silent before somebody asks why, in milliseconds. */
export const SILENCE = 3000;
const decoder = new TextDecoder();

/** A chat about `messages`. @param {any[]} messages @param {Record<string, any>} settings @param {Message[]} targets @returns {Task} */
export function chatTask(messages, settings, targets) {
  const { tops = 0, ...fields } = settings;
  const n = targets.length > 1 ? { n: targets.length } : {};
  return { path: CHAT, body: { ...fields, ...n, messages, ...logprobs(CHAT, tops), ...TOLD }, targets };
}

/** What follows exactly these ids. @param {number[]} prompt @param {Record<string, any>} settings @param {Message} target @returns {Task} */
export function textTask(prompt, settings, target) {
  const { tops = 0, reasoning_effort: _, ...fields } = settings;
  return { path: TEXT, body: { ...fields, prompt, ...logprobs(TEXT, tops), ...TOLD }, targets: [target] };
}

/** @param {string} path @param {number} tops */
function logprobs(path, tops) {
  if (!tops) return {};
  const asked = path === CHAT ? { logprobs: true, top_logprobs: tops } : { logprobs: tops };
  return { ...asked, return_tokens_as_token_ids: true };
}

/**
 * Runs to the end, to an error, or until `signal` says stop. `changed` is called for every event.
 * @param {Task} task @param {AbortSignal} signal @param {() => void} changed
 */
export async function run(task, signal, changed) {
  const begun = performance.now();
  const response = await ask(task.path, task.body, signal);
  try {
    for await (const event of events(/** @type {ReadableStream} */ (response.body))) {
      const failed = failureOf(event);
      if (failed) throw failed;
      if (event.done) return;
      take(event, task.targets, (performance.now() - begun) / 1000);
      changed();
    }
  } catch (error) {
    if (signal.aborted || error instanceof ApiError) throw error; // else the connection broke
  }
  throw new ApiError(0, 'The connection broke before the answer was complete.', 'broken');
}

/** @param {any} event @param {Message[]} targets @param {number} now seconds since it was asked */
export function take(event, targets, now) {
  for (const target of targets) {
    target.response = event.id;
    if (event.prompt_token_ids) target.promptIds = event.prompt_token_ids;
    if (event.usage) usage(target, event.usage);
  }
  for (const choice of event.choices ?? []) {
    const target = targets[choice.index];
    if (!target) continue;
    if (choice.prompt_token_ids) target.promptIds = choice.prompt_token_ids;
    const delta = choice.delta ?? { content: choice.text };
    if (delta.content) target.content += delta.content;
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) target.reasoning = (target.reasoning ?? '') + thought;
    for (const call of delta.tool_calls ?? []) takeCall(target, call);
    takeTokens(target, choice, now);
    if (choice.finish_reason) target.finish = choice.finish_reason;
  }
}

/** @param {Message} target @param {any} told */
function usage(target, told) {
  const stats = (target.stats ??= {});
  stats.prompt = told.prompt_tokens;
  stats.cached = told.prompt_tokens_details?.cached_tokens ?? 0;
}

/** @param {Message} target @param {any} call */
function takeCall(target, call) {
  const calls = (target.calls ??= []);
  const own = (calls[call.index] ??= { name: '', arguments: '' });
  own.name += call.function?.name ?? '';
  own.arguments += call.function?.arguments ?? '';
}

/** @param {Message} target @param {any} choice @param {number} now */
function takeTokens(target, choice, now) {
  const ids = choice.token_ids ?? [];
  if (!ids.length) return;
  const stats = (target.stats ??= {});
  stats.first ??= now;
  stats.seconds = now;
  stats.tokens = (stats.tokens ?? 0) + ids.length;
  (target.ids ??= []).push(...ids);
  const tops = topsOf(choice.logprobs);
  if (tops) (target.tops ??= []).push(...tops);
}

/** The likeliest tokens in the place of each, the drawn one first. @param {any} told @returns {import('./tree.js').Top[][] | null} */
function topsOf(told) {
  if (told?.content) return told.content.map((/** @type {any} */ each) => [each, ...each.top_logprobs].map(topOf));
  if (!told?.tokens) return null;
  return told.tokens.map((/** @type {string} */ name, /** @type {number} */ i) => {
    const others = Object.entries(told.top_logprobs[i] ?? {});
    return [[name, told.token_logprobs[i]], ...others].map(([id, logprob]) => ({ id: idOf(id), text: '', logprob }));
  });
}

/** @param {any} entry @returns {import('./tree.js').Top} */
function topOf(entry) {
  const text = decoder.decode(new Uint8Array(entry.bytes ?? []));
  return { id: idOf(entry.token), text, logprob: entry.logprob };
}

/** @param {string} name such as token_id:7 */
function idOf(name) {
  return Number(name.replace('token_id:', ''));
}

/** Tokens per second since the first. @param {import('./tree.js').Stats} [stats] */
export function rate(stats) {
  const seconds = (stats?.seconds ?? 0) - (stats?.first ?? 0);
  return stats?.tokens && stats.tokens > 1 && seconds > 0.02 ? (stats.tokens - 1) / seconds : null;
}
