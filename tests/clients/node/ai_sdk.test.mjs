import assert from "node:assert/strict";
import test from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, generateText, streamText } from "ai";
import { key, model, talk, url } from "./asked.mjs";

const provider = createOpenAICompatible({ name: "kvasir", baseURL: url + "/v1", apiKey: key, includeUsage: true });
const asked = { messages: talk, temperature: 0, maxOutputTokens: 16, maxRetries: 0 };

test("a text, streamed, equals the whole", async () => {
  const whole = await generateText({ model: provider(model), ...asked });
  const stream = streamText({ model: provider(model), ...asked });
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
});

test("an unknown model is an error", async () => {
  await assert.rejects(generateText({ model: provider("no-such-model"), ...asked }), { statusCode: 404 });
});

test("an embedding", async () => {
  const made = await embed({ model: provider.textEmbeddingModel(model), value: "one", maxRetries: 0 });
  assert.ok(made.embedding.length > 0);
});
