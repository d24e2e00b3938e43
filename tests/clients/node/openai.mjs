// The OpenAI SDK for Node.js.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { CHAT, SAID, THOUGHTS, main } from "./scenarios.mjs";

const Person = z.object({
  name: z.string(),
  age: z.number().int().min(0).max(120),
  kind: z.enum(["hero", "villain"]),
  friends: z.array(z.object({ name: z.string(), close: z.boolean() })),
  home: z.string().nullable(),
});
const WEATHER = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a place.",
    parameters: {
      type: "object",
      properties: { city: { type: "string" }, days: { type: "integer", minimum: 1, maximum: 7 } },
      required: ["city", "days"],
      additionalProperties: false,
    },
  },
};

function client({ url }) {
  return new OpenAI({ baseURL: url, apiKey: "unused", maxRetries: 0 });
}

function checkWeather(text) {
  const { city, days, ...rest } = JSON.parse(text);
  assert.equal(typeof city, "string");
  assert.ok(days >= 1 && days <= 7);
  assert.deepEqual(rest, {});
}

async function refusal(promise, kind) {
  const error = await promise.then(
    () => assert.fail("was answered"),
    (thrown) => thrown,
  );
  assert.ok(error instanceof kind, String(error));
  return error;
}

await main({
  async create(place) {
    const answer = await client(place).chat.completions.create({ model: place.model, messages: CHAT, max_tokens: 5 });

    assert.ok(answer.choices[0].message.content);
    assert.equal(answer.usage.prompt_tokens + answer.usage.completion_tokens, answer.usage.total_tokens);
    assert.ok(answer._request_id);
  },

  async stream(place) {
    const asked = { model: place.model, messages: CHAT, temperature: 0 };
    const whole = await client(place).chat.completions.create(asked);
    const stream = await client(place).chat.completions.create({
      ...asked,
      stream: true,
      stream_options: { include_usage: true },
    });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);

    const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
    assert.equal(text, whole.choices[0].message.content);
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
  },

  async streamHelper(place) {
    const runner = client(place).chat.completions.stream({ model: place.model, messages: CHAT });
    const heard = { connect: 0, chunk: 0, content: "", end: 0 };
    runner.on("connect", () => (heard.connect += 1));
    runner.on("chunk", () => (heard.chunk += 1));
    runner.on("content", (delta) => (heard.content += delta));
    runner.on("end", () => (heard.end += 1));
    const final = await runner.finalChatCompletion();

    assert.equal(final.choices[0].message.content, heard.content);
    assert.equal(final.choices[0].finish_reason, "stop");
    assert.ok(heard.chunk > 2);
    assert.deepEqual([heard.connect, heard.end], [1, 1]);
  },

  async streamAsReadable(place) {
    const stream = await client(place).chat.completions.create({
      model: place.model,
      messages: CHAT,
      max_tokens: 4,
      stream: true,
    });
    const lines = (await new Response(stream.toReadableStream()).text()).trim().split("\n");

    assert.ok(lines.every((line) => JSON.parse(line).object === "chat.completion.chunk"));
  },

  async severalChoicesWithLogprobs(place) {
    const answer = await client(place).chat.completions.create({
      model: place.model,
      messages: CHAT,
      max_tokens: 3,
      n: 2,
      logprobs: true,
      top_logprobs: 2,
    });

    assert.deepEqual(
      answer.choices.map((choice) => choice.index),
      [0, 1],
    );
    for (const choice of answer.choices) {
      assert.ok(choice.logprobs.content.every((token) => token.top_logprobs.length === 2));
    }
  },

  async parse(place) {
    const answer = await client(place).chat.completions.parse({
      model: place.model,
      messages: CHAT,
      response_format: zodResponseFormat(Person, "person"),
    });

    assert.ok(Person.safeParse(answer.choices[0].message.parsed).success);
  },

  async parseStreamed(place) {
    const final = await client(place)
      .chat.completions.stream({
        model: place.model,
        messages: CHAT,
        response_format: zodResponseFormat(Person, "person"),
      })
      .finalChatCompletion();

    assert.ok(Person.safeParse(final.choices[0].message.parsed).success);
  },

  async toolChoices(place) {
    for (const choice of ["auto", "required", { type: "function", function: { name: "get_weather" } }]) {
      const answer = await client(place).chat.completions.create({
        model: place.model,
        messages: CHAT,
        tools: [WEATHER],
        tool_choice: choice,
      });

      const { content, tool_calls: calls } = answer.choices[0].message;
      assert.equal(content, null);
      assert.ok(calls.length > 0);
      for (const call of calls) checkWeather(call.function.arguments);
    }
  },

  async toolsStreamed(place) {
    const runner = client(place).chat.completions.stream({
      model: place.model,
      messages: CHAT,
      tools: [WEATHER],
      tool_choice: "required",
    });
    const done = [];
    runner.on("tool_calls.function.arguments.done", (event) => done.push(event.arguments));
    const final = await runner.finalChatCompletion();

    assert.deepEqual(
      final.choices[0].message.tool_calls.map((call) => call.function.arguments),
      done,
    );
    done.forEach(checkWeather);
  },

  async parsedTools(place) {
    const answer = await client(place).chat.completions.parse({
      model: place.model,
      messages: CHAT,
      tools: [zodFunction({ name: "remember", parameters: Person })],
    });

    const [call] = answer.choices[0].message.tool_calls;
    assert.ok(Person.safeParse(call.function.parsed_arguments).success);
  },

  async runTools(place) {
    const asked = [];
    const runner = client(place).chat.completions.runTools({
      model: place.model,
      messages: CHAT,
      tools: [
        {
          type: "function",
          function: {
            ...WEATHER.function,
            parse: JSON.parse,
            function: (wish) => {
              asked.push(wish);
              return "Rain.";
            },
          },
        },
      ],
    });

    assert.ok(await runner.finalContent());
    assert.equal(asked.length, 1);
    assert.equal(typeof asked[0].city, "string");
  },

  async runToolsStreamed(place) {
    let calls = 0;
    const runner = client(place).chat.completions.runTools({
      model: place.model,
      messages: CHAT,
      stream: true,
      tools: [
        {
          type: "function",
          function: { ...WEATHER.function, parse: JSON.parse, function: () => `Rain ${(calls += 1)}` },
        },
      ],
    });

    assert.ok(await runner.finalContent());
    assert.equal(calls, 1);
  },

  async abortInTheMiddle(place) {
    const sdk = client(place);
    const leaving = new AbortController();
    const stream = await sdk.chat.completions.create(
      { model: place.model, messages: CHAT, stream: true },
      { signal: leaving.signal },
    );
    let chunks = 0;
    for await (const chunk of stream) {
      assert.ok(chunk.id);
      if ((chunks += 1) === 2) leaving.abort();
    }

    assert.ok(chunks >= 2);
    assert.ok((await sdk.chat.completions.create({ model: place.model, messages: CHAT, max_tokens: 1 })).id);
  },

  async leaveAndBreak(place) {
    const stream = await client(place).chat.completions.create({ model: place.model, messages: CHAT, stream: true });
    for await (const chunk of stream) {
      assert.equal(chunk.choices[0].delta.role, "assistant");
      break;
    }
    assert.ok(stream.controller.signal.aborted);
  },

  async completions(place) {
    const asked = { model: place.model, prompt: "Once", max_tokens: 6, temperature: 0 };
    const whole = await client(place).completions.create(asked);
    let text = "";
    for await (const chunk of await client(place).completions.create({ ...asked, stream: true })) {
      text += chunk.choices[0].text;
    }

    assert.equal(text, whole.choices[0].text);
  },

  async models(place) {
    const ids = [];
    for await (const card of client(place).models.list()) ids.push(card.id);

    assert.ok(ids.includes(place.model));
    assert.equal((await client(place).models.retrieve(place.model)).id, place.model);
  },

  thoughts: {
    thinks: true,
    async run(place) {
      const whole = await client(place).chat.completions.create({ model: place.model, messages: CHAT });
      let thoughts = "";
      for await (const chunk of await client(place).chat.completions.create({
        model: place.model,
        messages: CHAT,
        stream: true,
      })) {
        thoughts += chunk.choices[0].delta.reasoning_content ?? "";
      }

      assert.equal(whole.choices[0].message.content, SAID);
      assert.equal(whole.choices[0].message.reasoning_content, THOUGHTS);
      assert.equal(thoughts, THOUGHTS);
    },
  },

  embeddings: {
    thinks: true,
    engines: ["vllm", "sglang"],
    async run(place) {
      const packed = await client(place).embeddings.create({ model: place.model, input: ["The sea", "The ships"] });
      const plain = await client(place).embeddings.create({
        model: place.model,
        input: "The sea",
        encoding_format: "float",
      });

      assert.deepEqual(
        packed.data.map((item) => item.embedding.length),
        [64, 64],
      );
      packed.data[0].embedding.forEach((value, index) =>
        assert.ok(Math.abs(value - plain.data[0].embedding[index]) < 1e-6),
      );
    },
  },

  async errors(place) {
    const sdk = client(place);
    const ask = (fields) => sdk.chat.completions.create({ model: place.model, messages: CHAT, ...fields });

    const nobody = await refusal(ask({ model: "nobody" }), OpenAI.NotFoundError);
    assert.deepEqual([nobody.code, nobody.param, nobody.type], ["model_not_found", "model", "invalid_request_error"]);
    assert.ok(nobody.requestID);
    const hot = await refusal(ask({ temperature: 9, stream: true }), OpenAI.BadRequestError);
    assert.equal(hot.param, "temperature");
    const long = await refusal(
      ask({ messages: [{ role: "user", content: "x ".repeat(9000) }] }),
      OpenAI.BadRequestError,
    );
    assert.equal(long.code, "context_length_exceeded");
    await refusal(sdk.embeddings.create({ model: place.model, input: "The sea" }), OpenAI.BadRequestError);
  },
});
