// The Vercel AI SDK, by its provider for servers like OpenAI's and by OpenAI's own (`.chat`).

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  APICallError,
  Output,
  embed,
  embedMany,
  generateObject,
  generateText,
  stepCountIs,
  streamObject,
  streamText,
  tool,
} from "ai";
import { z } from "zod";
import { SAID, THOUGHTS, main } from "./scenarios.mjs";

const PROMPT = "What is the weather in Paris?";
const Person = z.object({
  name: z.string(),
  age: z.number().int().min(0).max(120),
  kind: z.enum(["hero", "villain"]),
  friends: z.array(z.object({ name: z.string(), close: z.boolean() })),
});

const PROVIDERS = {
  compatible: (url) =>
    createOpenAICompatible({
      name: "tandem",
      baseURL: url,
      apiKey: "unused",
      includeUsage: true,
      supportsStructuredOutputs: true,
    }),
  openai: (url) => {
    const provider = createOpenAI({ baseURL: url, apiKey: "unused" });
    const chat = (model) => provider.chat(model);
    return Object.assign(chat, { embeddingModel: provider.embedding, completionModel: provider.completion });
  },
};

function weather(asked) {
  return tool({
    description: "The weather of a place.",
    inputSchema: z.object({ city: z.string(), days: z.number().int().min(1).max(7) }),
    execute: async (wish) => {
      asked.push(wish);
      return { sky: "rain" };
    },
  });
}

function assertUsage(usage) {
  assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0, JSON.stringify(usage));
  assert.equal(usage.inputTokens + usage.outputTokens, usage.totalTokens);
}

async function parts(stream) {
  const found = [];
  for await (const part of stream) {
    if (part.type === "error") throw part.error;
    found.push(part);
  }
  return found;
}

/** Each scenario with each provider. */
function byProviders(scenarios) {
  return Object.fromEntries(
    Object.entries(scenarios).flatMap(([name, scenario]) =>
      Object.entries(PROVIDERS).map(([kind, made]) => {
        const { run, ...rest } = typeof scenario === "function" ? { run: scenario } : scenario;
        const asked = ({ url, model }) => run({ provider: made(url), chat: made(url)(model), model, kind });
        return [`${name} ${kind}`, { ...rest, run: asked }];
      }),
    ),
  );
}

await main(
  byProviders({
    async generateText({ chat }) {
      const answer = await generateText({ model: chat, prompt: PROMPT, maxRetries: 0 });

      assert.ok(answer.text);
      assert.equal(answer.finishReason, "stop");
      assert.deepEqual(answer.warnings ?? [], []);
      assertUsage(answer.usage);
    },

    async streamText({ chat }) {
      const asked = { model: chat, prompt: PROMPT, temperature: 0, maxRetries: 0 };
      const whole = await generateText(asked);
      const answer = streamText(asked);
      const found = await parts(answer.fullStream);

      const text = found.filter((part) => part.type === "text-delta").map((part) => part.text);
      assert.equal(text.join(""), whole.text);
      assert.ok(text.length > 2);
      assert.equal(await answer.finishReason, "stop");
      assertUsage(await answer.usage);
      assert.equal((await answer.usage).totalTokens, whole.usage.totalTokens);
    },

    async cutOff({ chat }) {
      const answer = streamText({ model: chat, prompt: PROMPT, maxOutputTokens: 2, maxRetries: 0 });
      await parts(answer.fullStream);

      assert.equal(await answer.finishReason, "length");
    },

    async tools({ chat }) {
      const asked = [];
      const answer = await generateText({
        model: chat,
        prompt: PROMPT,
        tools: { get_weather: weather(asked) },
        stopWhen: stepCountIs(3),
        maxRetries: 0,
      });

      assert.equal(asked.length, 1);
      assert.deepEqual(
        answer.steps.map((step) => step.finishReason),
        ["tool-calls", "stop"],
      );
      assert.deepEqual(answer.steps[0].toolResults[0].output, { sky: "rain" });
      assert.ok(answer.text);
    },

    async toolsStreamed({ chat }) {
      const asked = [];
      const answer = streamText({
        model: chat,
        prompt: PROMPT,
        tools: { get_weather: weather(asked) },
        stopWhen: stepCountIs(3),
        maxRetries: 0,
      });
      const kinds = (await parts(answer.fullStream)).map((part) => part.type);

      assert.equal(asked.length, 1);
      for (const kind of ["tool-input-start", "tool-input-delta", "tool-input-end", "tool-call", "tool-result"]) {
        assert.ok(kinds.includes(kind), kind);
      }
      assert.equal((await answer.steps).length, 2);
    },

    async toolsRequired({ chat }) {
      for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
        const { execute, ...unexecuted } = weather([]);
        const answer = await generateText({
          model: chat,
          prompt: PROMPT,
          tools: { get_weather: unexecuted },
          toolChoice,
          maxRetries: 0,
        });

        assert.ok(answer.toolCalls.length > 0);
        assert.ok(answer.toolCalls.every((call) => call.toolName === "get_weather" && !call.invalid));
      }
    },

    async generateObject({ chat }) {
      const answer = await generateObject({ model: chat, prompt: PROMPT, schema: Person, maxRetries: 0 });

      assert.ok(Person.safeParse(answer.object).success);
      assertUsage(answer.usage);
    },

    async generateList({ chat }) {
      const answer = await generateObject({
        model: chat,
        prompt: PROMPT,
        schema: Person,
        output: "array",
        maxRetries: 0,
      });

      assert.ok(z.array(Person).safeParse(answer.object).success);
    },

    async generateChoice({ chat }) {
      const answer = await generateObject({
        model: chat,
        prompt: PROMPT,
        output: "enum",
        enum: ["sunny", "rainy"],
        maxRetries: 0,
      });

      assert.ok(["sunny", "rainy"].includes(answer.object));
    },

    async streamObject({ chat }) {
      const answer = streamObject({ model: chat, prompt: PROMPT, schema: Person, maxRetries: 0 });
      let partial = 0;
      for await (const _ of answer.partialObjectStream) partial += 1;

      assert.ok(partial > 2);
      assert.ok(Person.safeParse(await answer.object).success);
    },

    async textWithOutput({ chat }) {
      const answer = await generateText({
        model: chat,
        prompt: PROMPT,
        output: Output.object({ schema: Person }),
        maxRetries: 0,
      });

      assert.ok(Person.safeParse(answer.output).success);
    },

    async abortInTheMiddle({ chat }) {
      const leaving = new AbortController();
      const answer = streamText({ model: chat, prompt: PROMPT, abortSignal: leaving.signal, maxRetries: 0 });
      const kinds = [];
      for await (const part of answer.fullStream) {
        kinds.push(part.type);
        if (part.type === "text-delta") leaving.abort();
      }

      assert.equal(kinds.at(-1), "abort");
      assert.ok((await generateText({ model: chat, prompt: PROMPT, maxOutputTokens: 1, maxRetries: 0 })).response.id);
    },

    thoughts: {
      thinks: true,
      async run({ chat, kind }) {
        const whole = await generateText({ model: chat, prompt: PROMPT, maxRetries: 0 });
        const found = await parts(streamText({ model: chat, prompt: PROMPT, maxRetries: 0 }).fullStream);
        const thoughts = found.filter((part) => part.type === "reasoning-delta").map((part) => part.text);

        // OpenAI's own chats do not tell thoughts, so its provider does not look for them.
        const told = kind === "compatible" ? THOUGHTS : "";
        assert.equal(whole.text, SAID);
        assert.equal(whole.reasoningText ?? "", told);
        assert.equal(thoughts.join(""), told);
        assert.ok(whole.usage.outputTokenDetails.reasoningTokens > 0);
      },
    },

    embeddings: {
      thinks: true,
      engines: ["vllm", "sglang"],
      async run({ provider, model }) {
        const maker = provider.embeddingModel(model);
        const one = await embed({ model: maker, value: "The sea", maxRetries: 0 });
        const many = await embedMany({ model: maker, values: ["The sea", "The ships"], maxRetries: 0 });

        assert.equal(one.embedding.length, 64);
        assert.deepEqual(many.embeddings[0], one.embedding);
        assert.ok(one.usage.tokens > 0);
      },
    },

    async completions({ provider, model }) {
      const answer = await generateText({
        model: provider.completionModel(model),
        prompt: "Once",
        maxOutputTokens: 4,
        maxRetries: 0,
      });

      assert.ok(answer.text);
    },

    async errors({ provider }) {
      const error = await generateText({ model: provider("nobody"), prompt: PROMPT, maxRetries: 0 }).then(
        () => assert.fail("was answered"),
        (thrown) => thrown,
      );

      assert.ok(APICallError.isInstance(error));
      assert.equal(error.statusCode, 404);
      assert.equal(error.data.error.code, "model_not_found");
      assert.match(error.message, /nobody/);
      assert.equal(error.isRetryable, false);
    },
  }),
);
