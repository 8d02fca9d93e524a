import assert from 'node:assert/strict';
import test from 'node:test';
import { page } from './dom.mjs';

const { beginning, read, summary } = await page('settings.js');
const temperature = { name: 'temperature', kind: 'float', default: 1, low: 0, high: 100, above_low: false, help: '' };
const topP = { ...temperature, name: 'top_p', high: 1, above_low: true };
const topK = { ...temperature, name: 'top_k', kind: 'int', low: -1, high: 1e6 };

test('numbers within the bounds that the server told, or what is wrong', () => {
  assert.equal(read('', temperature), null);
  assert.equal(read('0,7', temperature), 0.7);
  assert.equal(read('0', temperature), 0);
  assert.equal(read('101', temperature), 'A number from 0 to 100.');
  assert.equal(read('0', topP), 'A number above 0 to 1.');
  assert.equal(read('1.5', topK), 'A whole number from -1 to 1000000.');
  assert.equal(read('x', topK), 'A number from -1 to 1000000.');
});

test('settings in a line', () => {
  assert.equal(summary({}), 'as the server likes');
  assert.equal(summary({ temperature: 0, top_p: 0.5, stop: ['a', 'b'] }), 'temperature 0 · top p 0.5 · stop 2');
});

test('new conversations begin with the settings of the last one', () => {
  assert.deepEqual(beginning('{"top_k":5}'), { top_k: 5 });
  assert.deepEqual(beginning('{}'), {});
  for (const none of [null, '', 'null', '{']) assert.deepEqual(beginning(none), { temperature: 0.7 });
});
