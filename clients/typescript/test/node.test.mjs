// Against a real node, whose address APPORTION_NODE says.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, InvalidRequest } from "../dist/index.js";

const url = process.env["APPORTION_NODE"];
assert.ok(url, "APPORTION_NODE must say where a node is");
const limiter = new Client({ url, timeoutMs: 10_000, onNoAnswer: "raise" });

test("exactly the limit passes", async () => {
  const answers = await Promise.all(Array.from({ length: 30 }, () => limiter.check("ts", "few")));
  assert.equal(answers.filter((answer) => answer.allowed).length, 5);
  const denied = answers.find((answer) => !answer.allowed);
  assert.ok(Number(denied.headers["retry-after"]) >= 1);
  assert.match(denied.headers["ratelimit"], /^"few";r=0;t=\d+$/);
});

test("a batch, a peek and a refund", async () => {
  const said = await limiter.checkBatch([
    { clientKey: "batch", resource: "few", cost: 2 },
    { clientKey: "batch", resource: "few", cost: -1 },
  ]);
  assert.equal(said[0].remaining, 3);
  assert.ok(said[1] instanceof InvalidRequest);
  await limiter.refund("batch", "few", { cost: 2 });
  assert.equal((await limiter.peek("batch", "few")).remaining, 5);
});

test("slots are taken, renewed and released", async () => {
  const lease = await limiter.acquire("slots", "slots");
  assert.deepEqual([lease.answer.allowed, lease.leaseMs], [true, 30_000]);
  assert.equal((await limiter.acquire("slots", "slots")).answer.allowed, false);
  assert.equal(await limiter.renew("slots", "slots", lease.leaseId), true);
  assert.equal(await limiter.release("slots", "slots", lease.leaseId), true);
  assert.equal(await limiter.release("slots", "slots", lease.leaseId), false);
});

test("a check that is sent again under its id is charged once", async () => {
  for (const _ of [1, 2, 3]) await limiter.check("again", "few", { requestId: "r1" });
  assert.equal((await limiter.peek("again", "few")).remaining, 4);
});
