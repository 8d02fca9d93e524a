import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";
import { key, model, question, talk, url } from "./asked.mjs";

const client = new OpenAI({ baseURL: url + "/v1", apiKey: key, maxRetries: 0 });

test("a chat, streamed, equals the whole", async () => {
  const asked = { model, messages: talk, max_tokens: 16, temperature: 0 };
  const whole = await client.chat.completions.create(asked);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(text, whole.choices[0].message.content);
});

test("a response, streamed, equals the whole", async () => {
  const asked = { model, input: question, max_output_tokens: 16, temperature: 0 };
  const whole = await client.responses.create(asked);
  let text = "";
  let next = 0;
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    assert.equal(event.sequence_number, next++);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
});

test("a stream that is left early", async () => {
  const stream = await client.chat.completions.create({ model, messages: talk, max_tokens: 200, stream: true });
  for await (const _ of stream) break;
  assert.ok(stream.controller.signal.aborted);
});

test("errors have their class", async () => {
  await assert.rejects(client.chat.completions.create({ model: "no-such-model", messages: talk }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ model, messages: talk, temperature: -1 }), OpenAI.BadRequestError);
});

test("embeddings", async () => {
  const made = await client.embeddings.create({ model, input: ["one", "two"] });
  assert.equal(made.data.length, 2);
});
