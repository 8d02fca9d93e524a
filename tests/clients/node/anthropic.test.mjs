import assert from "node:assert/strict";
import test from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { key, model, talk, url } from "./asked.mjs";

const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const asked = { model, messages: talk, max_tokens: 16, temperature: 0 };

test("a message, streamed, equals the whole", async () => {
  const whole = await client.messages.create(asked);
  const final = await client.messages.stream(asked).finalMessage();
  assert.equal(whole.content.length, 1); // only the whole one says that it cites nothing
  assert.deepEqual({ citations: null, ...final.content[0] }, whole.content[0]);
  assert.equal(final.content.length, 1);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
  assert.equal(final.usage.input_tokens, whole.usage.input_tokens);
});

test("errors have their class", async () => {
  await assert.rejects(client.messages.create({ ...asked, model: "no-such-model" }), Anthropic.NotFoundError);
  await assert.rejects(client.messages.create({ ...asked, temperature: -1 }), Anthropic.BadRequestError);
});
