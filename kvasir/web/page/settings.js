/**
 * What shapes an answer: fields with the bounds that the server told.
 * @module
 */
import { h } from './dom.js';
import { session } from './session.js';

/** @typedef {Record<string, any>} Settings */

const FIRST = ['temperature', 'top_p', 'top_k', 'min_p'];
/** Of fields whose own names say little. @type {Record<string, string>} */
const NAMES = { n: 'Answers', tops: 'Alternatives' };
const EFFORTS = ['', 'none', 'minimal', 'low', 'medium', 'high'];

/** A new browser's: those of `kvasir chat`. @type {Settings} */
const FIRST_TIME = { temperature: 0.7 };

/** Settings that new conversations begin with: those of the last one. @param {string | null} kept as JSON @returns {Settings} */
export function beginning(kept) {
  try {
    return JSON.parse(kept ?? '') ?? FIRST_TIME;
  } catch {
    return FIRST_TIME;
  }
}

/** @param {string} name */
const words = (name) => NAMES[name] ?? name.replaceAll('_', ' ').replace(/^./, (c) => c.toUpperCase());

/**
 * A form over `settings`; `changed` is given new ones.
 * @param {Settings} settings @param {(settings: Settings) => void} changed
 */
export function settingsForm(settings, changed) {
  let now = settings;
  const set = (/** @type {string} */ name, /** @type {any} */ value) => {
    const { [name]: _, ...others } = now;
    now = value === null ? others : { ...others, [name]: value };
    changed(now);
  };
  const facts = session.facts;
  const shown = facts?.fields ?? [];
  const numbers = shown.map((field) => number(field.name, field, now[field.name], set));
  const first = numbers.filter((_, i) => FIRST.includes(shown[i].name));
  const more = numbers.filter((_, i) => !FIRST.includes(shown[i].name));
  const whole = (/** @type {string} */ name, /** @type {number} */ low, /** @type {number} */ high, /** @type {string} */ help) =>
    number(name, { name, kind: 'int', low, high, default: NaN, above_low: false, help }, now[name], set);
  const length = session.own?.max_model_len ?? 1e6;
  return h(
    'div',
    { class: 'fields' },
    first,
    whole('max_tokens', 1, length, 'Tokens of an answer, at most. Empty: as many as fit.'),
    whole('n', 1, facts?.max_n ?? 1, 'How many at once.'),
    whole('seed', 0, 2 ** 53 - 1, 'Equal seeds give equal answers. Empty: any.'),
    whole('tops', 0, facts?.max_logprobs ?? 0, 'Alternatives told for each token, to look inside. 0: none.'),
    stops(now.stop, set),
    effort(now.reasoning_effort, set),
    h('details', {}, h('summary', {}, 'Penalties and more'), more),
  );
}

/**
 * @param {string} name @param {import('./session.js').Field} field @param {any} value
 * @param {(name: string, value: any) => void} set
 */
function number(name, field, value, set) {
  const id = `field-${name}-${Math.random().toString(36).slice(2, 8)}`;
  const note = h('small', { id: `${id}-note` }, field.help);
  const input = h('input', {
    id,
    type: 'text',
    inputmode: field.kind === 'int' ? 'numeric' : 'decimal',
    value: value ?? '',
    placeholder: Number.isNaN(field.default) ? '' : String(field.default),
    'aria-describedby': `${id}-note`,
    oninput: () => {
      const told = read(input.value, field);
      input.setCustomValidity(typeof told === 'string' ? told : '');
      input.classList.toggle('is-wrong', typeof told === 'string');
      note.textContent = typeof told === 'string' ? told : field.help;
      if (typeof told !== 'string') set(name, told);
    },
  });
  return h('div', { class: 'field' }, h('label', { for: id }, words(name)), input, note);
}

/** A number within the bounds, null for none, or what is wrong with it. @param {string} text @param {import('./session.js').Field} field */
export function read(text, field) {
  if (!text.trim()) return null;
  const value = Number(text.trim().replace(',', '.'));
  const range = `${field.above_low ? 'above' : 'from'} ${field.low}${field.high < 1e9 ? ` to ${field.high}` : ''}`;
  if (!Number.isFinite(value)) return `A number ${range}.`;
  if (field.kind === 'int' && !Number.isInteger(value)) return `A whole number ${range}.`;
  const isLow = field.above_low ? value <= field.low : value < field.low;
  return isLow || value > field.high ? `A number ${range}.` : value;
}

/** @param {any} value @param {(name: string, value: any) => void} set */
function stops(value, set) {
  const id = `field-stop-${Math.random().toString(36).slice(2, 8)}`;
  const text = Array.isArray(value) ? value.join('\n') : (value ?? '');
  const area = h('textarea', {
    id,
    rows: 2,
    oninput: () => {
      const lines = area.value.split('\n').filter(Boolean);
      set('stop', lines.length ? lines : null);
    },
  }, text);
  return h('div', { class: 'field' }, h('label', { for: id }, 'Stop'), area, h('small', {}, 'Texts that end an answer, one a line.'));
}

/** @param {any} value @param {(name: string, value: any) => void} set */
function effort(value, set) {
  const id = `field-effort-${Math.random().toString(36).slice(2, 8)}`;
  const options = EFFORTS.map((each) => h('option', { value: each, selected: each === (value ?? '') }, each || 'as the model likes'));
  const select = h('select', { id, onchange: () => set('reasoning_effort', select.value || null) }, options);
  return h('div', { class: 'field' }, h('label', { for: id }, 'Reasoning effort'), select, h('small', {}, 'Of models that reason.'));
}

/** What is said of settings in a line. @param {Settings} settings */
export function summary(settings) {
  const told = Object.entries(settings).map(([name, value]) => `${words(name).toLowerCase()} ${Array.isArray(value) ? value.length : value}`);
  return told.join(' · ') || 'as the server likes';
}
