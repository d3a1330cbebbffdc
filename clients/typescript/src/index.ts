/**
 * A client of Apportion's check API: ask before you act, and say what happens when nobody answers.
 *
 *     import { Client } from "apportion";
 *
 *     const limiter = new Client({ url: "http://127.0.0.1:8101", onNoAnswer: "allow" });
 *     const answer = await limiter.check("user:42", "POST /orders", { attributes: { tier: "free" } });
 *     if (!answer.allowed) { ... }   // answer.retryAfterMs tells when it is worth asking again, null: never
 *
 * Needs nothing but fetch: Node 18 or newer, any browser, Deno, Bun, edge runtimes.
 */

export type OnNoAnswer = "allow" | "deny" | "raise";

export interface Options {
  /** A node, or the balancer in front of the region's nodes. */
  url: string;
  token?: string;
  domain?: string;
  /** Of each try, in ms; 100 unless said. */
  timeoutMs?: number;
  /** What a check is while no node answers: allowed (default), denied, or an error for the caller to deal with. */
  onNoAnswer?: OnNoAnswer;
  /**
   * How often a request is sent at most while no answer comes; 1 unless said, at most 5.  With more, a check gets an
   * id that stays the same over its tries, so that it is charged once.
   */
  tries?: number;
  fetch?: typeof fetch;
}

export interface CheckOptions {
  cost?: number;
  attributes?: Record<string, string>;
  /** Under the same id a check is charged once within a minute. */
  requestId?: string;
}

export interface Check extends CheckOptions {
  clientKey: string;
  resource: string;
}

export interface Answer {
  allowed: boolean;
  reason: string;
  /** null: no rule matched. */
  limit: number | null;
  remaining: number | null;
  /** 0 when allowed, null when waiting does not help. */
  retryAfterMs: number | null;
  resetAfterMs: number;
  rule: string | null;
  /** Answered without the region's store, or at the floor. */
  degraded: boolean;
  /** false: nobody answered, and onNoAnswer decided. */
  decided: boolean;
  /** How long a queue wants an allowed request to be held back. */
  waitMs: number;
  /** The rate limit headers that came with it, to be handed on; none for a check of a batch. */
  headers: Record<string, string>;
}

export interface Lease {
  answer: Answer;
  leaseId: string;
  /** For how long slots are held; null: none are. */
  leaseMs: number | null;
}

/** The request was refused: the caller erred.  `problem` says which field; never sent again. */
export class InvalidRequest extends Error {
  constructor(
    readonly status: number,
    readonly problem: Record<string, unknown>,
  ) {
    super(typeof problem["detail"] === "string" ? problem["detail"] : `status ${status}`);
    this.name = "InvalidRequest";
  }
}

/** No decision: no connection, no answer in time, or an answer that is none. */
export class NoAnswer extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = "NoAnswer";
  }
}

type Json = Record<string, unknown>;

interface Said {
  document: Json;
  headers: Record<string, string>;
}

const TRIES_MOST = 5;
const HANDED_ON = [
  "ratelimit-policy",
  "ratelimit",
  "ratelimit-soft",
  "x-ratelimit-limit",
  "x-ratelimit-remaining",
  "x-ratelimit-reset",
  "retry-after",
];

export class Client {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #domain: string;
  readonly #timeoutMs: number;
  readonly #onNoAnswer: OnNoAnswer;
  readonly #tries: number;
  readonly #fetch: typeof fetch;

  constructor(options: Options) {
    const { url, token, domain = "default", timeoutMs = 100, onNoAnswer = "allow", tries = 1 } = options;
    if (!["allow", "deny", "raise"].includes(onNoAnswer)) {
      throw new RangeError("onNoAnswer must be allow, deny or raise");
    }
    if (!Number.isInteger(tries) || tries < 1 || tries > TRIES_MOST) {
      throw new RangeError(`tries must be 1 to ${TRIES_MOST}`);
    }
    this.#url = url.replace(/\/+$/, "");
    this.#headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
    this.#domain = domain;
    this.#timeoutMs = timeoutMs;
    this.#onNoAnswer = onNoAnswer;
    this.#tries = tries;
    // As a method of ours it would be called with another `this`, which browsers refuse.
    const given = options.fetch ?? globalThis.fetch;
    this.#fetch = (input, init) => given(input, init);
  }

  /** May this happen now?  Charges the cost when it may.  Throws InvalidRequest. */
  async check(clientKey: string, resource: string, options: CheckOptions = {}): Promise<Answer> {
    const body = this.#body(this.#repeatable({ ...options, clientKey, resource }));
    try {
      const mayRepeat = body["request_id"] !== undefined || body["cost"] === 0;
      return answerOf(await this.#post("/v1/check", body, mayRepeat));
    } catch (error) {
      return this.#missing(error);
    }
  }

  /** Up to 1,000 independent checks at once; an answer for each, or InvalidRequest in its place, in their order. */
  async checkBatch(checks: readonly Check[]): Promise<(Answer | InvalidRequest)[]> {
    const bodies = checks.map((check) => this.#body(this.#repeatable(check)));
    try {
      const { document } = await this.#post("/v1/check:batch", { checks: bodies }, this.#tries > 1);
      const answers = document["answers"];
      if (!Array.isArray(answers) || answers.length !== checks.length) {
        throw new NoAnswer("the answer does not fit the batch");
      }
      return answers.map((item: unknown) => this.#item(isObject(item) ? item : {}));
    } catch (error) {
      const missing = this.#missing(error);
      return checks.map(() => missing);
    }
  }

  /** What is left, without taking any of it.  Throws InvalidRequest. */
  async peek(clientKey: string, resource: string, attributes: Record<string, string> = {}): Promise<Answer> {
    const query = new URLSearchParams({ client_key: clientKey, resource, domain: this.#domain });
    for (const [name, value] of Object.entries(attributes)) query.set(`attributes.${name}`, value);
    try {
      return answerOf(await this.#send(`/v1/peek?${query}`, { method: "GET" }, true));
    } catch (error) {
      return this.#missing(error);
    }
  }

  /** Give back what a check took.  Throws InvalidRequest, and NoAnswer: it may or may not have happened. */
  async refund(clientKey: string, resource: string, options: CheckOptions = {}): Promise<void> {
    const body = this.#body({ ...options, clientKey, resource });
    await this.#post("/v1/refund", body, body["request_id"] !== undefined);
  }

  /** Take slots of every concurrency rule that this meets, and charge its other rules: all or none. */
  async acquire(
    clientKey: string,
    resource: string,
    options: { cost?: number; attributes?: Record<string, string>; leaseId?: string } = {},
  ): Promise<Lease> {
    const { leaseId = newId(), ...more } = options;
    const body = { ...this.#body({ ...more, clientKey, resource }), lease_id: leaseId };
    try {
      const said = await this.#post("/v1/acquire", body, true);
      const leaseMs = said.document["lease_ms"];
      return { answer: answerOf(said), leaseId, leaseMs: typeof leaseMs === "number" ? leaseMs : null };
    } catch (error) {
      return { answer: this.#missing(error), leaseId, leaseMs: null };
    }
  }

  /** Hold on to the slots of a lease; false: nothing is held any more. */
  async renew(clientKey: string, resource: string, leaseId: string, attributes?: Record<string, string>): Promise<boolean> {
    return (await this.#post("/v1/renew", this.#lease(clientKey, resource, leaseId, attributes), true)).document["held"] === true;
  }

  /** Free the slots of a lease; whether any were held. */
  async release(clientKey: string, resource: string, leaseId: string, attributes?: Record<string, string>): Promise<boolean> {
    return (await this.#post("/v1/release", this.#lease(clientKey, resource, leaseId, attributes), true)).document["released"] === true;
  }

  #lease(clientKey: string, resource: string, leaseId: string, attributes: Record<string, string> | undefined): Json {
    const lease: Json = { client_key: clientKey, resource, domain: this.#domain, lease_id: leaseId };
    if (attributes !== undefined) lease["attributes"] = attributes;
    return lease;
  }

  #repeatable(check: Check): Check {
    if (this.#tries === 1 || check.requestId !== undefined || check.cost === 0) return check;
    return { ...check, requestId: newId() };
  }

  #body(check: Check): Json {
    const body: Json = {
      client_key: check.clientKey,
      resource: check.resource,
      cost: check.cost ?? 1,
      domain: this.#domain,
    };
    if (check.attributes !== undefined) body["attributes"] = check.attributes;
    if (check.requestId !== undefined) body["request_id"] = check.requestId;
    return body;
  }

  #item(item: Json): Answer | InvalidRequest {
    try {
      const problem = item["error"];
      if (!isObject(problem)) return answerOf({ document: item, headers: {} });
      const status = problem["status"];
      if (typeof status === "number" && status >= 400 && status < 500) return new InvalidRequest(status, problem);
      throw new NoAnswer(`status ${String(status)}`);
    } catch (error) {
      return this.#missing(error);
    }
  }

  /** Nobody answered: what this client was told to make of that.  Any other error is thrown again. */
  #missing(error: unknown): Answer {
    if (!(error instanceof NoAnswer) || this.#onNoAnswer === "raise") throw error;
    const allowed = this.#onNoAnswer === "allow";
    return {
      allowed,
      reason: "no_answer",
      limit: null,
      remaining: null,
      retryAfterMs: allowed ? 0 : 1000,
      resetAfterMs: 0,
      rule: null,
      degraded: true,
      decided: false,
      waitMs: 0,
      headers: {},
    };
  }

  #post(path: string, body: Json, mayRepeat: boolean): Promise<Said> {
    const headers = { "content-type": "application/json" };
    return this.#send(path, { method: "POST", headers, body: JSON.stringify(body) }, mayRepeat);
  }

  async #send(path: string, request: RequestInit, mayRepeat: boolean): Promise<Said> {
    for (let left = mayRepeat ? this.#tries - 1 : 0; left > 0; left--) {
      try {
        return await this.#sendOnce(path, request);
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
      }
    }
    return this.#sendOnce(path, request);
  }

  async #sendOnce(path: string, request: RequestInit): Promise<Said> {
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), this.#timeoutMs);
    let response: Response;
    let document: unknown;
    try {
      response = await this.#fetch(this.#url + path, {
        ...request,
        headers: { ...this.#headers, ...(request.headers as Record<string, string> | undefined) },
        signal: abort.signal,
        redirect: "manual",
      });
      const text = await response.text();
      try {
        document = JSON.parse(text);
      } catch {
        document = undefined;
      }
    } catch (error) {
      throw new NoAnswer(abort.signal.aborted ? `no answer within ${this.#timeoutMs} ms` : String(error), { cause: error });
    } finally {
      clearTimeout(timer);
    }
    const known = isObject(document) ? document : {};
    if (response.status === 200 && isObject(document)) {
      return { document: known, headers: handedOn(response.headers) };
    }
    // 408 and 429 come from what stands between; they are no verdict on the request.
    if (response.status >= 400 && response.status < 500 && response.status !== 408 && response.status !== 429) {
      throw new InvalidRequest(response.status, known);
    }
    throw new NoAnswer(`status ${response.status}`);
  }
}

/** What an application answers to a request that was denied: 429, or 503 where it could not be decided. */
export function denial(answer: Answer): { status: number; headers: Record<string, string>; body: string } {
  const undecided = !answer.decided || answer.reason === "store_unavailable";
  const kind = undecided ? "temporary-reduced-capacity" : "quota-exceeded";
  const status = undecided ? 503 : 429;
  const { "retry-after": _, ...limits } = answer.headers;
  const headers: Record<string, string> = {
    ...limits,
    "content-type": "application/problem+json",
    "cache-control": "no-store",
  };
  if (answer.retryAfterMs !== null) headers["retry-after"] = String(Math.max(1, Math.ceil(answer.retryAfterMs / 1000)));
  const body = JSON.stringify({
    type: `https://iana.org/assignments/http-problem-types#${kind}`,
    title: undecided ? "Temporarily reduced capacity" : "Quota exceeded",
    status,
    "violated-policies": answer.rule === null ? [] : [answer.rule],
    retry_after_ms: answer.retryAfterMs,
    reason: answer.reason,
  });
  return { status, headers, body };
}

function answerOf(said: Said): Answer {
  const { document, headers } = said;
  const allowed = document["allowed"];
  if (typeof allowed !== "boolean") throw new NoAnswer("the answer has no decision");
  return {
    allowed,
    reason: typeof document["reason"] === "string" ? document["reason"] : "",
    limit: numberOrNull(document["limit"]),
    remaining: numberOrNull(document["remaining"]),
    retryAfterMs: numberOrNull(document["retry_after_ms"]),
    resetAfterMs: numberOrNull(document["reset_after_ms"]) ?? 0,
    rule: typeof document["rule"] === "string" ? document["rule"] : null,
    degraded: document["degraded"] === true,
    decided: true,
    waitMs: numberOrNull(document["wait_ms"]) ?? 0,
    headers,
  };
}

function handedOn(headers: Headers): Record<string, string> {
  const found: Record<string, string> = {};
  for (const name of HANDED_ON) {
    const value = headers.get(name);
    if (value !== null) found[name] = value;
  }
  return found;
}

function numberOrNull(value: unknown): number | null {
  return typeof value === "number" ? value : null;
}

function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function newId(): string {
  const bytes = new Uint8Array(16);
  // Node 18 has no global crypto; an id has to be new, not secret.
  if (globalThis.crypto === undefined) bytes.forEach((_, place) => (bytes[place] = Math.floor(Math.random() * 256)));
  else globalThis.crypto.getRandomValues(bytes);
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
