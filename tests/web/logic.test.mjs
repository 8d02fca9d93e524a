import assert from 'node:assert/strict';
import test from 'node:test';
import { numbers, page } from './dom.mjs';

const { EventReader, events } = await page('sse.js');
const tree = await page('tree.js');
const { take, rate } = await page('answer.js');
const { firstDifference } = await page('difference.js');
const format = await page('format.js');
const { isNewer } = await page('api.js');

test('events are whole however the text is cut', () => {
  const text = ': hello\n\ndata: {"a":1}\n\ndata: one\r\ndata:two\r\n\r\nevent: x\ndata: [DONE]\n\n';
  const random = numbers(3);
  for (let round = 0; round < 50; round++) {
    const reader = new EventReader();
    const found = [];
    for (let at = 0; at < text.length; ) {
      const end = at + 1 + Math.floor(random() * 9);
      found.push(...reader.read(text.slice(at, end)));
      at = end;
    }
    assert.deepEqual(found, ['{"a":1}', 'one\ntwo', '[DONE]']);
  }
});

test('a stream that breaks has no end, and characters are never cut', async () => {
  const bytes = new TextEncoder().encode('data: {"t":"aé😀"}\n\ndata: [DONE]\n\n');
  const of = (...parts) => new ReadableStream({ start(c) { for (const part of parts) c.enqueue(part); c.close(); } });
  const all = async (body) => { const found = []; for await (const each of events(body)) found.push(each); return found; };
  for (let at = 1; at < bytes.length; at++) {
    assert.deepEqual(await all(of(bytes.slice(0, at), bytes.slice(at))), [{ t: 'aé😀' }, { done: true }]);
  }
  assert.deepEqual(await all(of(bytes.slice(0, -14))), [{ t: 'aé😀' }]);
});

function talk() {
  let conversation = tree.newConversation({ temperature: 0 }, 'be brief');
  const add = (parent, said) => {
    const message = tree.newMessage(conversation, parent, { time: conversation.messages.size, ...said });
    conversation = tree.withMessage(conversation, message);
    return message.id;
  };
  const q = add(null, { content: 'hello\nthere' });
  const a = add(q, { role: 'assistant', content: 'hi' });
  const b = add(q, { role: 'assistant', content: 'ho' });
  const c = add(b, { content: 'more' });
  return { conversation, q, a, b, c };
}

test('a conversation is a tree, and what is shown is a path', () => {
  const { conversation, q, a, b, c } = talk();
  assert.equal(conversation.head.title, 'hello');
  assert.deepEqual(tree.pathTo(conversation).map((x) => x.id), [q, b, c]);
  assert.deepEqual(tree.siblingsOf(conversation, conversation.messages.get(a)).map((x) => x.id), [a, b]);
  assert.equal(tree.leafBelow(conversation, q), c);
  const [kept, gone] = tree.without(conversation, b);
  assert.deepEqual(gone.map((x) => x.id), [b, c]);
  assert.deepEqual(tree.pathTo(kept).map((x) => x.id), [q, a]);
  assert.equal(conversation.messages.size, 4);
  const [empty] = tree.without(conversation, q);
  assert.equal(empty.head.selected, null);
});

test('what is sent has the system prompt and files, fenced by more ticks than they have', () => {
  const { conversation } = talk();
  const path = tree.pathTo(conversation);
  path[0] = { ...path[0], attachments: [{ name: 'a.md', media: 'text/plain', text: '```\nx\n```' }, { name: 'p', media: 'image/png', data: 'data:image/png;base64,AA' }] };
  const [system, first, second] = tree.toRequest('be brief', path);
  assert.deepEqual(system, { role: 'system', content: 'be brief' });
  assert.equal(first.content[0].image_url.url, 'data:image/png;base64,AA');
  assert.match(first.content[1].text, /^a\.md:\n````\n```\nx\n```\n````\n\nhello/);
  assert.deepEqual(second, { role: 'assistant', content: 'ho' });
});

test('what is exported can be imported, as something new', () => {
  const { conversation } = talk();
  const told = JSON.parse(JSON.stringify(tree.exported([conversation])));
  const [again] = tree.imported(told);
  assert.notEqual(again.head.id, conversation.head.id);
  const texts = (x) => tree.pathTo(x).map((message) => [message.role, message.content]);
  assert.deepEqual(texts(again), texts(conversation));
  assert.equal(again.head.system, 'be brief');
  assert.deepEqual(again.head.settings, { temperature: 0 });
  for (const bad of [null, {}, { format: 'x' }, { format: tree.FORMAT, version: 2, conversations: [] }]) assert.throws(() => tree.imported(bad));
  const odd = { format: tree.FORMAT, version: 1, conversations: [{ messages: [{ id: 1, parent: 1, content: 7 }, { id: 2, parent: 9, role: 'system', attachments: [{ data: 'https://x' }] }], settings: { a: {}, b: 1 }, selected: 2 }] };
  const [read] = tree.imported(odd);
  assert.deepEqual(read.head.settings, { b: 1 });
  assert.equal(tree.pathTo(read)[0].attachments[0].data, undefined);
});

test('a search wants every word', () => {
  const { conversation } = talk();
  const matches = (query) => tree.matches(query, conversation.head, conversation.messages.values());
  assert.ok(matches('HELLO ho'));
  assert.ok(!matches('hello nothing'));
});

test('events are told to the messages they belong to', () => {
  const targets = [{ content: '' }, { content: '' }];
  const entry = { token: 'token_id:7', bytes: [104, 105], logprob: -0.1, top_logprobs: [{ token: 'token_id:8', bytes: [104], logprob: -3 }] };
  take({ id: 'r', prompt_token_ids: [1, 2], choices: [{ index: 0, delta: { role: 'assistant', content: '' } }] }, targets, 0.1);
  take({ id: 'r', choices: [{ index: 1, delta: { content: 'hi', reasoning_content: 'so' }, token_ids: [7], logprobs: { content: [entry] } }] }, targets, 0.5);
  take({ id: 'r', choices: [{ index: 1, delta: { tool_calls: [{ index: 0, function: { name: 'f', arguments: '{' } }] }, token_ids: [8, 9] }] }, targets, 1);
  take({ id: 'r', choices: [{ index: 1, delta: { tool_calls: [{ index: 0, function: { arguments: '}' } }] }, finish_reason: 'tool_calls' }] }, targets, 1);
  take({ id: 'r', choices: [{ index: 0, text: 'raw', token_ids: [3], logprobs: { tokens: ['token_id:3'], token_logprobs: [-1], top_logprobs: [{ 'token_id:4': -2 }] } }], usage: { prompt_tokens: 5, prompt_tokens_details: { cached_tokens: 4 } } }, targets, 2);
  const [first, second] = targets;
  assert.deepEqual([second.content, second.reasoning, second.ids, second.calls], ['hi', 'so', [7, 8, 9], [{ name: 'f', arguments: '{}' }]]);
  assert.deepEqual(second.tops, [[{ id: 7, text: 'hi', logprob: -0.1 }, { id: 8, text: 'h', logprob: -3 }]]);
  assert.deepEqual([first.content, first.promptIds, first.tops[0].map((x) => x.id)], ['raw', [1, 2], [3, 4]]);
  assert.equal(rate(second.stats), 4);
  assert.equal(second.stats.cached, 4);
});

test('differences and numbers', () => {
  const of = (...ids) => ids.map((id) => ({ id }));
  assert.equal(firstDifference(of(1, 2), of(1, 2)), -1);
  assert.equal(firstDifference(of(1, 2), of(1, 3)), 1);
  assert.equal(firstDifference(of(1), of(1, 3)), 1);
  assert.deepEqual([0.0004, 0.05, 0.2, 1.234, 75, 130, null].map(format.duration), ['0.4 ms', '50 ms', '200 ms', '1.23 s', '75.0 s', '2 min 10 s', '–']);
  assert.deepEqual(['', ' a', 'a\n', '\r', '\u200b\t'].map(format.visible), ['∅', '␣a', 'a⏎\n', '‹d›', '‹200b›⇥']);
  assert.deepEqual([900, 1500, 2_500_000].map(format.size), ['900 B', '1.5 kB', '2.5 MB']);
});

function fileOf(messages, more = {}) {
  return { format: tree.FORMAT, version: 1, conversations: [{ id: 'x', title: 't', messages, ...more }] };
}

test('a file whose messages follow each other in a circle has an end', { timeout: 5000 }, () => {
  const said = (id, parent, time) => ({ id, parent, time, role: 'user', content: id });
  const circles = [said('a', 'b', 5), said('b', 'a', 6), said('c', 'b', 4), said('d', 'd', 1), said('e', 'c', 2), said('f', null, 0)];
  for (let first = 0; first < circles.length; first++) {
    const order = [...circles.slice(first), ...circles.slice(0, first)];
    const [made] = tree.imported(fileOf(order, { selected: 'c' }));
    assert.equal(made.messages.size, circles.length);
    for (const message of made.messages.values()) {
      assert.ok(tree.pathTo(made, message.id)[0].parent === null);
      tree.leafBelow(made, message.id);
      const [kept, gone] = tree.without(made, message.id);
      assert.equal(kept.messages.size + gone.length, circles.length);
    }
  }
});

test('what is imported as a picture can be shown as one', () => {
  const head = 'data:image/png;base64,';
  const files = [`${head}iVBORw0KGgo=`, `${head}@@@`, `${head}abc`, `${head}iVBO;x`, 'data:text/html;base64,aGk='];
  const [made] = tree.imported(fileOf([{ id: 'a', role: 'user', content: '', attachments: files.map((data) => ({ name: 'x', data })) }]));
  const [message] = made.messages.values();
  assert.deepEqual(message.attachments.map((file) => file.data !== undefined), [true, false, false, false, false]);
});

test('calls of tools come back, and nothing that is none', () => {
  const calls = [{ name: 'f', arguments: '{"x": 1}' }, { name: 'g', arguments: '' }];
  const said = { id: 'a', role: 'assistant', content: '', finish: 'tool_calls' };
  const of = (given) => [...tree.imported(fileOf([{ ...said, calls: given }]))[0].messages.values()][0].calls;
  assert.deepEqual(of([...calls, null, { arguments: 'x' }, { name: 7 }]), calls);
  assert.deepEqual(of([{ name: 'f', arguments: {}, more: 1 }]), [{ name: 'f', arguments: '' }]);
  assert.equal(of('f'), undefined);
  const [once] = tree.imported(fileOf([{ ...said, calls }]));
  const [again] = tree.imported(JSON.parse(JSON.stringify(tree.exported([once]))));
  assert.deepEqual([...again.messages.values()][0].calls, calls);
});

test('settings come back, and nothing that is none', () => {
  const settings = { temperature: 0.5, stop: ['a', 'b'], reasoning_effort: 'low' };
  const [made] = tree.imported(fileOf([], { settings: { ...settings, store: true, model: 'x', messages: 'y', tools: [{}] } }));
  assert.deepEqual(made.head.settings, settings);
});

test('a page is as new as the server says, also through a proxy that calls the tag weak', async () => {
  const real = globalThis.fetch;
  const told = async (etag) => {
    globalThis.fetch = async () => new Response('', { headers: etag === null ? {} : { etag } });
    return isNewer();
  };
  try {
    const found = [];
    for (const tag of ['"page"', 'W/"page"', '"other"', 'W/"other"', null]) found.push(await told(tag));
    assert.deepEqual(found, [false, false, true, true, false]);
  } finally {
    globalThis.fetch = real;
  }
});
