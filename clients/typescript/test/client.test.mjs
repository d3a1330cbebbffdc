// What the client asks, how it reads answers, and what it does when there is none.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";

import { Client, InvalidRequest, NoAnswer, denial } from "../dist/index.js";

/** Answers what a test says to each request in turn, and remembers what was asked. */
let outcomes = [];
let asked = [];
let url = "";

const server = createServer((request, response) => {
  let text = "";
  request.on("data", (part) => (text += part));
  request.on("end", () => {
    asked.push({
      method: request.method,
      path: request.url,
      headers: request.headers,
      body: text ? JSON.parse(text) : null,
    });
    const outcome = outcomes.shift() ?? { allowed: true, reason: "ok" };
    if (outcome === "hang up") return void request.socket.destroy();
    const { status = 200, headers = {}, ...document } = outcome;
    response.writeHead(status, { "content-type": "application/json", ...headers });
    response.end(outcome.text ?? JSON.stringify(document));
  });
});

before(async () => {
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  url = `http://127.0.0.1:${server.address().port}`;
});
after(() => {
  server.closeAllConnections();
  server.close();
});
beforeEach(() => {
  outcomes = [];
  asked = [];
});

const client = (options = {}) => new Client({ url, timeoutMs: 5000, ...options });

test("a check is asked for as it was meant, and its answer comes back whole", async () => {
  outcomes = [
    {
      allowed: false, reason: "limited", limit: 20, remaining: 0, retry_after_ms: 334, reset_after_ms: 11200,
      rule: "orders", degraded: false, headers: { ratelimit: '"orders";r=0;t=12', "retry-after": "1", "x-other": "1" },
    },
  ];
  const options = { cost: 3, attributes: { tier: "free" }, requestId: "r1" };
  const answer = await client({ domain: "shop", token: "secret" }).check("u:1 é", "GET /x", options);
  assert.deepEqual(answer, {
    allowed: false, reason: "limited", limit: 20, remaining: 0, retryAfterMs: 334, resetAfterMs: 11200, rule: "orders",
    degraded: false, decided: true, waitMs: 0, headers: { ratelimit: '"orders";r=0;t=12', "retry-after": "1" },
  });
  assert.equal(asked[0].headers.authorization, "Bearer secret");
  assert.deepEqual(asked[0].body, {
    client_key: "u:1 é", resource: "GET /x", cost: 3, domain: "shop", attributes: { tier: "free" }, request_id: "r1",
  });
});

for (const outcome of ["hang up", { status: 503 }, { status: 500 }, { status: 429 }, { status: 302 }, { text: "<html>" },
  { text: "[]" }, { allowed: "yes" }]) {
  test(`what is no decision is no answer: ${JSON.stringify(outcome)}`, async () => {
    for (const [choice, allowed] of [["allow", true], ["deny", false]]) {
      outcomes = [outcome];
      const answer = await client({ onNoAnswer: choice }).check("a", "b");
      assert.deepEqual([answer.allowed, answer.decided, answer.reason], [allowed, false, "no_answer"]);
    }
    outcomes = [outcome];
    await assert.rejects(client({ onNoAnswer: "raise" }).check("a", "b"), NoAnswer);
  });
}

test("a node that does not answer is not waited for", async () => {
  // A server of its own: what is given up may still arrive while the next test asks.
  const silent = createServer(() => {});
  await new Promise((listening) => silent.listen(0, "127.0.0.1", listening));
  try {
    const there = `http://127.0.0.1:${silent.address().port}`;
    const answer = await client({ url: there, timeoutMs: 50, onNoAnswer: "deny" }).check("a", "b");
    assert.equal(answer.decided, false);
  } finally {
    silent.closeAllConnections();
    silent.close();
  }
});

test("the same check goes out again under the same id", async () => {
  outcomes = ["hang up", { status: 503 }];
  const answer = await client({ tries: 3 }).check("a", "b");
  assert.equal(answer.decided, true);
  assert.equal(asked.length, 3);
  assert.equal(new Set(asked.map(({ body }) => body.request_id)).size, 1);
  assert.match(asked[0].body.request_id, /^[0-9a-f]{32}$/);
});

test("without tries nothing is sent twice and no id is made", async () => {
  outcomes = [{ status: 503 }];
  await client().check("a", "b");
  assert.equal(asked.length, 1);
  assert.equal("request_id" in asked[0].body, false);
});

test("a refund without an id is not sent again, and says that it may not have happened", async () => {
  outcomes = [{ status: 503 }];
  await assert.rejects(client({ tries: 3 }).refund("a", "b"), NoAnswer);
  assert.equal(asked.length, 1);
});

test("a refused request is the caller's error, whatever the choice is", async () => {
  outcomes = [{ status: 422, detail: "client_key: too long", errors: [{ field: "client_key" }] }];
  await assert.rejects(client({ tries: 3 }).check("a", "b"), (error) => {
    assert.ok(error instanceof InvalidRequest);
    assert.equal(error.status, 422);
    assert.equal(error.problem.errors[0].field, "client_key");
    return true;
  });
  assert.equal(asked.length, 1);
});

test("a batch comes back in order with what is wrong in its place", async () => {
  outcomes = [
    { answers: [{ allowed: true, reason: "ok" }, { error: { status: 422, detail: "wrong" } }, { error: { status: 500 } }] },
  ];
  const checks = ["a", "b", "c"].map((clientKey) => ({ clientKey, resource: "r" }));
  const [first, wrong, failed] = await client({ onNoAnswer: "deny" }).checkBatch(checks);
  assert.equal(first.allowed, true);
  assert.ok(wrong instanceof InvalidRequest);
  assert.deepEqual([failed.allowed, failed.decided], [false, false]);
  outcomes = [{ answers: [] }];
  assert.deepEqual((await client({ onNoAnswer: "deny" }).checkBatch(checks)).map((one) => one.decided), [false, false, false]);
});

test("a denial is 429 with a whole number of seconds, or 503 where nobody decided", async () => {
  outcomes = [{ allowed: false, reason: "limited", retry_after_ms: 1334, rule: "orders", headers: { "retry-after": "9" } }, { status: 503 }];
  const limited = denial(await client().check("a", "b"));
  assert.deepEqual([limited.status, limited.headers["retry-after"]], [429, "2"]);
  assert.equal(limited.headers["content-type"], "application/problem+json");
  assert.deepEqual(JSON.parse(limited.body)["violated-policies"], ["orders"]);
  const undecided = denial(await client({ onNoAnswer: "deny" }).check("a", "b"));
  assert.deepEqual([undecided.status, undecided.headers["retry-after"]], [503, "1"]);
});

test("what makes no sense is refused at once", () => {
  assert.throws(() => client({ onNoAnswer: "opne" }), RangeError);
  for (const tries of [0, 6, 1.5]) assert.throws(() => client({ tries }), RangeError);
});
