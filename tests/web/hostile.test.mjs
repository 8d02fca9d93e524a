// What a model says makes no node but those of a list, none that asks for anything, and none that acts.
import assert from 'node:assert/strict';
import test from 'node:test';
import { FakeElement, elements, numbers, page } from './dom.mjs';
import { VECTORS } from './vectors.mjs';

const { parse } = await page('markdown/stream.js');
const { render } = await page('markdown/render.js');
const { h } = await page('dom.js');
const MUTATIONS = Number(process.env.KVASIR_MUTATIONS ?? 1000);


const SHOWN = new Set(('p blockquote ul ol li em strong del a span code pre div br hr table thead tbody tr th td button h3 h4 h5 h6').split(' '));
const ATTRIBUTES = new Set('class title href target rel start data-kind tabindex type'.split(' '));

function check(text) {
  const body = new FakeElement('div');
  render(body, parse(text));
  for (const element of elements(body)) {
    assert.ok(SHOWN.has(element.tag), `${element.tag} of ${JSON.stringify(text)}`);
    for (const [name, value] of element.attributes) {
      assert.ok(ATTRIBUTES.has(name), `${name} of ${JSON.stringify(text)}`);
      if (name === 'href') assert.match(value, /^(https?:\/\/|mailto:)/i);
    }
    if (element.listeners.length) assert.equal(element.tag, 'button');
  }
}

test('known vectors', () => {
  assert.ok(VECTORS.length > 500, String(VECTORS.length));
  for (const vector of VECTORS) check(vector);
});

test('mutations of them', () => {
  const random = numbers(11);
  const pick = (list) => list[Math.floor(random() * list.length)];
  const signs = [...'<>[]()!*_`~|&;:"\'\\\n\t #-=/\0\u2028\ufeff', '](', '![', '&#x', '```\n', '\n\n', 'javascript:'];
  for (let i = 0; i < MUTATIONS; i++) {
    let text = pick(VECTORS) + (random() < 0.3 ? pick(VECTORS) : '');
    for (let n = 1 + random() * 4; n > 0; n--) {
      const at = Math.floor(random() * text.length);
      text = text.slice(0, at) + (random() < 0.7 ? pick(signs) : '') + text.slice(at + (random() < 0.5 ? 1 : 0));
    }
    check(text);
  }
});

test('the list of nodes refuses others', () => {
  for (const tag of ['script', 'iframe', 'style', 'object', 'link', 'base', 'meta', 'embed']) assert.throws(() => h(tag));
  assert.throws(() => h('a', { href: 'javascript:alert(1)' }));
  assert.throws(() => h('img', { src: 'https://evil.example/x.png' }));
  assert.throws(() => h('div', { onclick: 'alert(1)' }));
  assert.throws(() => h('div', { style: 'x' }));
  assert.throws(() => h('div', { srcdoc: 'x' }));
  assert.equal(h('p', {}, '<b>').firstChild.data, '<b>');
});
