import assert from "node:assert/strict";
import test from "node:test";
import { Ollama } from "ollama";
import { key, model, question, talk, url } from "./asked.mjs";

const client = new Ollama({ host: url, headers: { Authorization: `Bearer ${key}` } });
const options = { temperature: 0, num_predict: 16 };

test("a chat, streamed, equals the whole", async () => {
  const whole = await client.chat({ model, messages: talk, options });
  let text = "";
  for await (const part of await client.chat({ model, messages: talk, options, stream: true })) text += part.message.content;
  assert.equal(text, whole.message.content);
});

test("generate", async () => {
  const whole = await client.generate({ model, prompt: question, options });
  assert.ok(whole.response.length > 0);
  assert.ok(whole.context.length > 0);
});

test("an unknown model is an error", async () => {
  await assert.rejects(client.chat({ model: "no-such-model", messages: talk }), /no-such-model/);
});

test("a stream that is left early", async () => {
  const stream = await client.chat({ model, messages: talk, stream: true, options: { num_predict: 200 } });
  for await (const _ of stream) break;
});
