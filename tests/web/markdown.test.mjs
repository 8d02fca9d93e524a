import assert from 'node:assert/strict';
import test from 'node:test';
import { FakeElement, numbers, page } from './dom.mjs';
import { html } from './html.mjs';

const { MarkdownStream, parse } = await page('markdown/stream.js');
const { render } = await page('markdown/render.js');
const { parts } = await page('markdown/highlight.js');

const TEXTS = [
  '# A title\n\nSome *text* with `code`, **bold** and a [link](https://example.org "t").\n\n- one\n- two\n  - three\n\n    more\n- four\n',
  'before\n\n| a | b |\n|:--|--:|\n| 1 | `x|y` |\n| 2\\|3 |\n\nafter',
  '```python\ndef f():\n    return "a"\n\n\n```\nthen [ref] and [other][ref]\n\n[ref]: <http://a b> "T"\n',
  'text\n---\n***\n> quote\nlazy\n> - item\n\n1) one\n2) two\n\n10) ten\n',
  '~~gone~~ a~b \\* not &amp; &#65; <https://x.y/z> <b>no tag</b>\\\nhard  \nbreak',
  '    indented\n\n    code\n\ntext\r\nwith\r\nreturns\r\n\r\n* a\r\n* b',
];

test('what a text becomes', () => {
  assert.equal(html(parse('a *b **c*** d')), '<p>a <em>b <strong>c</strong></em> d</p>');
  assert.equal(html(parse('| a | b |\n|---|:-:|\n| 1 |')),
    '<table><thead><tr><th>a</th><th style="text-align:center">b</th></tr></thead><tbody><tr><td>1</td><td style="text-align:center"></td></tr></tbody></table>');
  assert.equal(html(parse('~~a~~ <b>x</b>')), '<p><s>a</s> &lt;b&gt;x&lt;/b&gt;</p>');
  assert.match(html(parse('para\na | b\n--|--\n1 | 2\n\nnext')), /^<p>para<\/p><table>.*<\/table><p>next<\/p>$/);
});

test('any split of a text streams to the same nodes, and each beginning to those of itself', () => {
  const random = numbers(7);
  for (const text of TEXTS) {
    const whole = JSON.stringify(parse(text));
    for (let round = 0; round < 20; round++) {
      const stream = new MarkdownStream();
      for (let at = 0; at < text.length; ) {
        const end = Math.min(text.length, at + 1 + Math.floor(random() * (round % 4 ? 12 : 2)));
        stream.append(text.slice(at, end));
        at = end;
        if (random() < 0.6) {
          const seen = JSON.stringify(stream.nodes());
          const beginning = text.slice(0, at);
          if (!text.includes(']: ')) assert.equal(seen, JSON.stringify(parse(beginning)), beginning);
        }
      }
      assert.equal(JSON.stringify(stream.nodes()), whole);
    }
  }
});

test('blocks that are closed keep their nodes, in the page too', () => {
  const body = new FakeElement('div');
  const stream = new MarkdownStream();
  stream.append('# One\n\nfirst\n\n');
  render(body, stream.nodes());
  const [title, first] = body.childNodes;
  stream.append('second\n\n- a\n');
  render(body, stream.nodes());
  stream.append('- b\n');
  render(body, stream.nodes());
  assert.equal(body.childNodes[0], title);
  assert.equal(body.childNodes[1], first);
  assert.equal(body.childNodes[2].textContent, 'second');
  assert.equal(body.childNodes[3].childNodes.length, 2);
});

test('only the open block is read again', () => {
  const stream = new MarkdownStream();
  for (let i = 0; i < 200; i++) {
    stream.append(`Paragraph ${i} of some words.\n\n`);
    stream.nodes();
    assert.ok(stream.text.length - stream.from < 80);
  }
});

test('what is nested deeply, or never closed, takes no longer than its length', () => {
  const n = 10_000;
  const begun = performance.now();
  for (const text of ['['.repeat(n), '*a '.repeat(n), '>'.repeat(n), '- '.repeat(n), '`'.repeat(n), '![a'.repeat(n),
    '**a _b'.repeat(n / 4), '[a](b "'.repeat(n / 8), '`a``b'.repeat(n / 4), '<a@b'.repeat(n / 4), `${'('.repeat(n)}[x](${'('.repeat(n)}`,
    `${'*'.repeat(n)}a${'*'.repeat(n)}`, '| '.repeat(n), '&'.repeat(n), '\\'.repeat(n)]) {
    render(new FakeElement('div'), parse(text));
  }
  assert.ok(performance.now() - begun < 20_000);
});

test('code is coloured by what its words are', () => {
  const found = parts('def f(x):  # says\n    return "a" + 12', 'python').map(([kind]) => kind);
  assert.deepEqual(found, ['keyword', 'call', 'comment', 'keyword', 'string', 'number']);
});
