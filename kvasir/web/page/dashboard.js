/**
 * How the server does: now, twice a second while somebody looks, and in the last hour.
 * @module
 */
import { json } from './api.js';
import { barChart, lineChart, plainTable } from './charts.js';
import { fill, h } from './dom.js';
import { count, decimal, duration, percent, size, when } from './format.js';

const LOOK = 500;
const HISTORY = 10000;
/** Milliseconds between two looks. */
const WINDOWS = { 60: '1 minute', 300: '5 minutes', 3600: '1 hour' };

class Dashboard extends HTMLElement {
  connectedCallback() {
    this.isHere = true;
    this.now = h('div', { class: 'tiles' });
    this.charts = h('div', { class: 'charts' });
    this.past = h('div', { class: 'charts' });
    this.prompts = h('div', { class: 'charts' });
    this.note = h('p', { class: 'note', role: 'status' }, 'Looking…');
    this.append(h('h1', {}, 'Dashboard'), this.note, this.now, this.charts, h('h2', {}, 'The last hour'), this.past, this.prompts);
    this.look();
    this.lookBack();
  }

  disconnectedCallback() {
    this.isHere = false;
  }

  /** Whether nobody looks, or somebody reads a table or has the focus in a chart. */
  get isStill() {
    return document.hidden || this.querySelector('details[open]') !== null || (document.activeElement !== null && document.activeElement !== this && this.contains(document.activeElement));
  }

  async look() {
    while (this.isHere) {
      if (!this.isStill) await this.tell(() => json('v1/dashboard'), (told) => this.show(told));
      await new Promise((resolve) => setTimeout(resolve, LOOK));
    }
  }

  async lookBack() {
    while (this.isHere) {
      if (!this.isStill) await this.tell(() => json('v1/dashboard/history'), (told) => this.showPast(told));
      if (!this.isStill) await this.tell(() => json('v1/dashboard/prefixes'), (told) => this.prompts && fill(this.prompts, prefixes(told)));
      await new Promise((resolve) => setTimeout(resolve, HISTORY));
    }
  }

  /** @param {() => Promise<any>} ask @param {(told: any) => void} show */
  async tell(ask, show) {
    try {
      show(await ask());
      if (this.note) this.note.textContent = '';
    } catch (error) {
      if (this.note) this.note.textContent = /** @type {Error} */ (error).message;
    }
  }

  /** @param {any} told */
  show(told) {
    if (!this.now || !this.charts) return;
    const hits = told.prefix_queries ? told.prefix_hits / told.prefix_queries : 0;
    fill(this.now,
      tile('Tokens per second', decimal(told.output_rate, told.output_rate < 100 ? 1 : 0), `${decimal(told.prompt_rate, 0)} of prompts`),
      tile('Running', `${told.running} of ${told.places}`, `${told.waiting} wait`),
      tile('Next starts', told.expected_wait ? `in ${duration(told.expected_wait)}` : 'now', told.state),
      tile('Cache hits', percent(hits), `of ${count(told.prefix_queries)} tokens looked up`),
      told.drafted ? tile('Drafts accepted', percent(told.accepted / told.drafted), `of ${count(told.drafted)} tokens`) : null,
      told.engine_deaths ? tile('Engine deaths', count(told.engine_deaths), 'since the start') : null);
    fill(this.charts, latencies(told.windows), steps(told.steps), blocks(told.kv), owners(told.kv), refusals(told), disk(told.disk));
  }

  /** @param {any} told */
  showPast(told) {
    if (!this.past) return;
    const times = told.at.map((/** @type {number} */ at) => when(at * 1000));
    if (times.length < 2) return fill(this.past, h('p', { class: 'note' }, 'It begins to fill: a point comes every ten seconds.'));
    const whole = (/** @type {number} */ n) => count(n);
    fill(this.past,
      lineChart('Tokens generated per second', times, [{ name: 'generated', values: told.output_rate }], (n) => decimal(n, n < 10 ? 1 : 0)),
      lineChart('Prompt tokens per second', times, [{ name: 'of prompts', values: told.prompt_rate }], (n) => decimal(n, 0)),
      lineChart('Requests', times, [{ name: 'running', values: told.running }, { name: 'waiting', values: told.waiting }], whole),
      lineChart('KV blocks in use', times, [{ name: 'in use', values: told.blocks_used }], whole));
  }
}

/** @param {string} name @param {string} value @param {string} note */
function tile(name, value, note) {
  return h('div', { class: 'tile' }, h('span', { class: 'name' }, name), h('strong', {}, value), h('small', {}, note));
}

/** @param {Record<string, any>} windows */
function latencies(windows) {
  const whole = Object.entries(WINDOWS).filter(([seconds], i) => i === 0 || windows[seconds].seconds > Number(seconds) * 0.9);
  const rows = whole.flatMap(([seconds, name]) => {
    const window = windows[seconds];
    const isShort = window.seconds < Number(seconds) * 0.9;
    return ['ttft', 'itl'].map((kind) => {
      const told = window[kind];
      const label = `${kind === 'ttft' ? 'First token' : 'Token to token'}, ${isShort ? duration(window.seconds) : name}`;
      return [label, duration(told.p50), duration(told.p90), duration(told.p99), count(told.count)];
    });
  });
  return h('section', { class: 'chart' }, h('h2', {}, 'Latency'), plainTable('Latency', ['', 'p50', 'p90', 'p99', 'Count'], rows));
}

/** @param {any} told */
function steps(told) {
  const kinds = [['decode', 'one'], ['prefill', 'two'], ['draft', 'three'], ['forced', 'four']];
  const parts = kinds.map(([name, kind]) => ({ name, kind, value: told[name] }));
  const title = `Time of ${count(told.steps)} steps in the last ${decimal(told.seconds)} s, busy ${percent(told.busy)}`;
  return barChart(title, parts, told.seconds, duration);
}

/** @param {any} kv */
function blocks(kv) {
  const parts = [
    { name: 'in use', kind: 'one', value: kv.used },
    { name: 'cached', kind: 'two', value: kv.cached },
    { name: 'free', kind: 'ground', value: kv.free },
  ];
  return barChart(`${count(kv.blocks)} KV blocks of ${kv.block_size} tokens; sharing saves ${count(kv.shared)}`, parts, kv.blocks, count);
}

/** What running choices have, and what they would have if each were given its whole context at once. @param {any} kv */
function owners(kv) {
  const running = kv.requests.length + kv.others.running;
  if (!running) return h('section', { class: 'chart' }, h('h2', {}, 'Blocks by request'), h('p', { class: 'note' }, 'Nothing runs.'));
  const fullness = (/** @type {any} */ own) => (own.blocks ? own.tokens / (own.blocks * kv.block_size) : 0);
  const each = kv.contiguous / running;
  const whole = (/** @type {any} */ own, n = 1) => own.tokens / (each * n * kv.block_size);
  const rows = kv.requests.map((/** @type {any} */ own, /** @type {number} */ i) => [`${i + 1}: ${short(own.id)}`, count(own.blocks), count(own.tokens), percent(fullness(own)), percent(whole(own))]);
  const { others } = kv;
  if (others.running) rows.push([`${count(others.running)} of other keys`, count(others.blocks), count(others.tokens), percent(fullness(others)), percent(whole(others, others.running))]);
  return h('section', { class: 'chart' }, h('h2', {}, 'Blocks by request'),
    plainTable('Blocks by request', ['Request', 'Blocks', 'Tokens', 'Filled', 'Filled if contiguous'], rows),
    memory(kv, each),
    h('p', { class: 'note' }, `Given at once, whole contexts would take ${count(kv.contiguous)} blocks of ${count(kv.blocks)}.`));
}

/** @param {string} id */
function short(id) {
  return id.length > 18 ? `${id.slice(0, 9)}…${id.slice(-6)}` : id;
}

/** The same as a figure: what each is given in blocks, and in one piece, and how much of that it uses.
 * @param {any} kv @param {number} each blocks of a whole context */
function memory(kv, each) {
  const bar = (/** @type {number} */ given, /** @type {number} */ used) => h('svg', { viewBox: '0 0 100 10', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    h('rect', { class: 'two', x: 0, y: 0, width: (100 * given) / each, height: 10 }),
    h('rect', { class: 'one', x: 0, y: 0, width: (100 * used) / each, height: 10 }));
  const row = (/** @type {any} */ own, /** @type {string} */ name) => {
    const used = own.tokens / kv.block_size;
    return h('tr', {}, h('th', { scope: 'row' }, name), h('td', {}, bar(own.blocks, used)), h('td', {}, bar(each, used)));
  };
  const rows = kv.requests.map((/** @type {any} */ own, /** @type {number} */ i) => row(own, String(i + 1)));
  if (!rows.length) return null;
  return [h('table', { class: 'memory' }, h('thead', {}, h('tr', {}, h('th', {}, ''), h('th', { scope: 'col' }, 'In blocks'), h('th', { scope: 'col' }, 'Contiguous'))), h('tbody', {}, rows)),
    h('p', { class: 'legend' }, h('span', { class: 'one' }, 'used'), h('span', { class: 'two' }, 'given and unused'))];
}

/** @param {any} told */
function refusals(told) {
  const rows = (/** @type {Record<string, number>} */ counts) => Object.entries(counts).sort((a, b) => b[1] - a[1]).map(([name, n]) => [name, count(n)]);
  return h('section', { class: 'chart' }, h('h2', {}, 'Ends and refusals since the start'),
    plainTable('Choices that ended', ['Ended by', 'Choices'], rows(told.finished)),
    Object.keys(told.refusals).length ? plainTable('Failed and refused requests', ['Refused for', 'Requests'], rows(told.refusals)) : h('p', { class: 'note' }, 'Nothing was refused.'));
}

/** What prompts begin with alike: a row for each run of tokens, moved in below the one before it. @param {any} told */
function prefixes(told) {
  /** @type {number[]} */
  const depths = [];
  const rows = told.prefixes.map((/** @type {any} */ run) => {
    depths.push(run.parent < 0 ? 0 : depths[run.parent] + 1);
    const name = `${'↳ '.repeat(Math.min(depths[depths.length - 1], 8))}${run.text.replace(/\s+/g, ' ')}…`;
    return [name, count(run.tokens), count(run.prompts), count(run.hits), duration(run.age)];
  });
  const others = told.others ? ` ${count(told.others)} of other keys are not looked into.` : '';
  return h('section', { class: 'chart' }, h('h2', {}, 'Prompts that begin alike'),
    rows.length ? plainTable('Prompts that begin alike', ['Begins', 'Tokens', 'Prompts', 'Found computed', 'Last, ago'], rows) : null,
    h('p', { class: 'note' }, `Of the newest ${count(told.prompts)} prompts, their first ${count(told.max_tokens)} tokens.${others}`));
}

/** @param {any} told */
function disk(told) {
  if (!told) return null;
  const rows = [['On disk', size(told.bytes)], ['Blocks stored', count(told.stored)], ['Blocks loaded', count(told.loaded)],
    ['Tokens of hits', count(told.hit_tokens)], ['Dropped', count(told.dropped)], ['Damaged', count(told.damaged)]];
  return h('section', { class: 'chart' }, h('h2', {}, 'Disk'), plainTable('Disk', ['', ''], rows));
}

customElements.define('k-dashboard', Dashboard);
