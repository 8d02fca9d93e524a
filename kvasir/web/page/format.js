/**
 * Numbers as people read them.
 * @module
 */

/** @param {number} n */
export function count(n) {
  return Math.round(n).toLocaleString('en');
}

/** @param {number | null | undefined} n @param {number} [digits] */
export function decimal(n, digits = 1) {
  return n === null || n === undefined ? '–' : n.toFixed(digits);
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds === 0) return '0 ms';
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 99.5) return `${seconds.toFixed(seconds < 9.95 ? 2 : 1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** @param {number} share of one */
export function percent(share) {
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const units = ['kB', 'MB', 'GB', 'TB'];
  let i = 0;
  for (bytes /= 1000; bytes >= 1000 && i < units.length - 1; i++) bytes /= 1000;
  return `${bytes.toFixed(bytes < 10 ? 1 : 0)} ${units[i]}`;
}

/** A day or a time of today. @param {number} time milliseconds */
export function when(time) {
  const date = new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday
    ? date.toLocaleTimeString('en', { hour: '2-digit', minute: '2-digit', hour12: false })
    : date.toLocaleDateString('en', { day: 'numeric', month: 'short' });
}

/** The text of a token, so that white space, control characters and nothing can be seen. @param {string} text */
export function visible(text) {
  if (text === '') return '∅';
  const shown = text.replaceAll('\n', '⏎\n').replaceAll('\t', '⇥').replace(/^ | $/g, '␣');
  return shown.replace(/(?!\n)\p{C}/gu, (c) => `‹${(c.codePointAt(0) ?? 0).toString(16)}›`);
}
