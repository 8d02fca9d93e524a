/**
 * Lines and bars, and the table that says the same.
 * @module
 */
import { h } from './dom.js';

const WIDTH = 600;
const HEIGHT = 120;
const KINDS = ['one', 'two', 'three', 'four'];

/** @typedef {{ name: string, values: (number | null)[] }} Line */

/**
 * Lines over time, with a table below that is folded.
 * @param {string} title @param {string[]} times @param {Line[]} lines @param {(n: number) => string} shown
 */
export function lineChart(title, times, lines, shown) {
  const most = Math.max(1e-9, ...lines.flatMap((line) => line.values.map((value) => value ?? 0)));
  const step = WIDTH / Math.max(1, times.length - 1);
  const y = (/** @type {number} */ value) => HEIGHT - 4 - (value / most) * (HEIGHT - 12);
  const paths = lines.map((line, i) => {
    const points = line.values.map((value, x) => (value === null ? null : `${(x * step).toFixed(1)},${y(value).toFixed(1)}`));
    return h('polyline', { class: `line ${KINDS[i]}`, points: points.filter(Boolean).join(' ') });
  });
  const newest = lines.map((line) => `${line.name} ${shown(line.values.at(-1) ?? 0)}`).join(', ');
  const picture = h('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${title}: ${newest}. The table has all values.` },
    h('line', { class: 'axis', x1: 0, x2: WIDTH, y1: HEIGHT - 4, y2: HEIGHT - 4 }), paths);
  return h('figure', { class: 'chart' },
    h('figcaption', {}, title, ' ', h('small', {}, `up to ${shown(most)}`)),
    picture,
    lines.length > 1 ? h('p', { class: 'legend' }, lines.map((line, i) => h('span', { class: KINDS[i] }, line.name))) : null,
    tableOf(title, ['Time', ...lines.map((line) => line.name)], times.map((time, i) => [time, ...lines.map((line) => (line.values[i] === null ? '–' : shown(line.values[i] ?? 0)))])));
}

/**
 * One bar of parts of a whole, and its table.
 * @param {string} title @param {{ name: string, value: number, kind: string }[]} parts @param {number} whole
 * @param {(n: number) => string} shown
 */
export function barChart(title, parts, whole, shown) {
  let x = 0;
  const bars = parts.map((part) => {
    const width = (100 * part.value) / Math.max(whole, 1e-9);
    const bar = h('rect', { class: part.kind, x, y: 0, width, height: 10 }, h('title', {}, `${part.name}: ${shown(part.value)}`));
    x += width;
    return bar;
  });
  const told = parts.map((part) => `${part.name} ${shown(part.value)}`).join(', ');
  return h('figure', { class: 'chart bar-chart' },
    h('figcaption', {}, title),
    h('svg', { viewBox: '0 0 100 10', preserveAspectRatio: 'none', role: 'img', 'aria-label': `${title}: ${told}` }, h('rect', { class: 'ground', x: 0, y: 0, width: 100, height: 10 }), bars),
    h('p', { class: 'legend' }, parts.map((part) => h('span', { class: part.kind }, `${part.name} ${shown(part.value)}`))),
    tableOf(title, ['What', 'How much'], parts.map((part) => [part.name, shown(part.value)])));
}

/** @param {string} title @param {string[]} heads @param {string[][]} rows */
function tableOf(title, heads, rows) {
  return h('details', { class: 'as-table' }, h('summary', {}, 'Table'), plainTable(title, heads, rows));
}

/** @param {string} title @param {string[]} heads @param {string[][]} rows */
export function plainTable(title, heads, rows) {
  const body = rows.map(([first, ...rest]) => h('tr', {}, h('th', { scope: 'row' }, first), rest.map((cell) => h('td', {}, cell))));
  return h('div', { class: 'table', tabindex: 0 }, h('table', {},
    h('caption', { class: 'unseen' }, title),
    h('thead', {}, h('tr', {}, heads.map((head) => h('th', { scope: 'col' }, head)))),
    h('tbody', {}, body)));
}
