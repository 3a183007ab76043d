/**
 * A server, and requests to it: typed by its own description, tried again where that is safe.
 *
 * Safe is what has the same effect however often it arrives: reading, replacing, removing, and what carries a key of its own. All
 * else is sent once; if its answer is lost, only the caller can tell what to do.
 */

import { AtollError, errorOf, InternalError, InvalidRequest, Unavailable } from "./errors.ts";
import type { paths } from "./generated/api.ts";
import { delay, unlessAborted } from "./waiting.ts";

/** Where the server is, and how it is asked. */
export interface Connection {
  /** Its address; else that of ATOLL_URL, else http://127.0.0.1:8000. */
  url?: string;
  /** What it is shown; else ATOLL_TOKEN. */
  token?: string;
  /** How often a request is tried again that failed and may be repeated; 4 if nothing is said. */
  retries?: number;
  /** What sends requests; else that of the platform. */
  fetch?: typeof globalThis.fetch;
  /** What opens WebSockets; else that of the platform, and plain requests where there is none. `null`: never any. */
  WebSocket?: typeof globalThis.WebSocket | null;
}

/** What every call takes. */
export interface Abortable {
  /** Ends the call, and with it what it started; the call throws the signal's reason. */
  signal?: AbortSignal;
}

type Method = "get" | "put" | "post" | "delete" | "patch";
type Route = keyof paths;
type Operation<R extends Route, M extends Method> = NonNullable<paths[R][M]>;
type Json<T> = T extends { content: { "application/json": infer J } } ? J : undefined;
type Parameters<O, K extends "path" | "query"> = O extends { parameters: infer P }
  ? K extends keyof P
    ? NonNullable<P[K]>
    : never
  : never;
type Body<O> = O extends { requestBody?: infer B } ? Json<NonNullable<B>> : undefined;
type Answer<O> = O extends { responses: infer A }
  ? A extends { 200: infer S }
    ? Json<S>
    : A extends { 201: infer S }
      ? Json<S>
      : undefined
  : never;

/** What a request holds. */
export interface Call<R extends Route, M extends Method> extends Abortable {
  path?: Parameters<Operation<R, M>, "path">;
  query?: Parameters<Operation<R, M>, "query">;
  body?: Body<Operation<R, M>>;
  /** A raw body. */
  data?: Uint8Array | Blob | ReadableStream<Uint8Array>;
  headers?: Record<string, string>;
  /** Makes the server do this only once, however often it is sent. */
  key?: string;
  /** Whether it may be sent again; else as its method says. */
  isSafe?: boolean;
}

const DEFAULT_URL = "http://127.0.0.1:8000";
const DEFAULT_RETRIES = 4;
const FIRST_DELAY_MS = 100;
const MOST_DELAY_MS = 10_000;
const SAFE_METHODS: ReadonlySet<Method> = new Set(["get", "put", "delete"]);
const TOO_MANY_REQUESTS = 429;
// What proxies say of a server that will be back.
const PASSING: ReadonlySet<number> = new Set([502, 503, 504]);

/** A server. */
export class Client {
  /** Its address, without a slash at the end. */
  readonly url: string;
  readonly #token: string | undefined;
  readonly #retries: number;
  readonly #fetch: typeof globalThis.fetch;
  readonly #socket: typeof globalThis.WebSocket | null | undefined;

  constructor(connection: Connection = {}) {
    this.url = checkUrl(connection.url ?? readVariable("ATOLL_URL") ?? DEFAULT_URL);
    this.#token = checkToken(connection.token ?? readVariable("ATOLL_TOKEN"));
    this.#retries = connection.retries ?? DEFAULT_RETRIES;
    this.#fetch = connection.fetch ?? ((input, init) => globalThis.fetch(input, init));
    this.#socket = connection.WebSocket === undefined ? globalThis.WebSocket : connection.WebSocket;
  }

  /** Send a request; return the JSON of the answer, if it has any. */
  call<R extends Route, M extends Method>(
    method: M,
    route: R,
    call: Call<R, M> = {},
  ): Promise<Answer<Operation<R, M>>> {
    return this.#retry(method, call, async () => {
      const answer = await this.#sendOnce(method, route, call);
      const text = await readBody(() => answer.text(), call.signal);
      return (text === "" ? undefined : JSON.parse(text)) as Answer<Operation<R, M>>;
    });
  }

  /** Send a request; return the answer while its body still comes. Throws an `AtollError` for any that is none. */
  send<R extends Route, M extends Method>(
    method: M,
    route: R,
    call: Call<R, M> = {},
  ): Promise<Response> {
    return this.#retry(method, call, () => this.#sendOnce(method, route, call));
  }

  /** Open a WebSocket, or return null where the platform has none that can show a token. */
  openSocket(path: string, query: Record<string, unknown> = {}): globalThis.WebSocket | null {
    if (this.#socket === null || this.#socket === undefined) {
      return null;
    }
    // Browsers know no headers here and refuse the whole second argument, which says that plain requests are needed.
    const options = { headers: this.#headers() } as unknown as string[];
    try {
      const address = this.url.replace(/^http/, "ws") + path + writeQuery(query);
      return this.#token === undefined
        ? new this.#socket(address)
        : new this.#socket(address, options);
    } catch {
      return null;
    }
  }

  #headers(): Record<string, string> {
    return this.#token === undefined ? {} : { Authorization: `Bearer ${this.#token}` };
  }

  #request<R extends Route, M extends Method>(method: M, call: Call<R, M>): RequestInit {
    const headers: Record<string, string> = { ...this.#headers(), ...call.headers };
    const init: RequestInit & { duplex?: "half" } = { method: method.toUpperCase(), headers };
    if (call.key !== undefined) {
      headers["Idempotency-Key"] = call.key;
    }
    if (call.body !== undefined) {
      headers["Content-Type"] = "application/json";
      init.body = JSON.stringify(call.body);
    } else if (call.data !== undefined) {
      headers["Content-Type"] = "application/octet-stream";
      init.body = call.data as BodyInit;
      init.duplex = "half";
    }
    if (call.signal !== undefined) {
      init.signal = call.signal;
    }
    return init;
  }

  async #retry<T>(
    method: Method,
    call: Pick<Call<Route, Method>, "data" | "key" | "isSafe" | "signal">,
    once: () => Promise<T>,
  ): Promise<T> {
    const isStream = call.data instanceof ReadableStream;
    const isKept = SAFE_METHODS.has(method) || call.key !== undefined;
    const isSafe = !isStream && (call.isSafe ?? isKept);
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await once();
      } catch (error) {
        const wait = delayBefore(error, attempt, isSafe, !isStream);
        if (wait === null || attempt >= this.#retries) {
          throw error;
        }
        await delay(wait, call.signal);
      }
    }
  }

  async #sendOnce<R extends Route, M extends Method>(
    method: M,
    route: R,
    call: Call<R, M>,
  ): Promise<Response> {
    const { signal } = call;
    const address = this.url + fillIn(route, call.path) + writeQuery(call.query);
    const init = this.#request(method, call);
    let answer: Response;
    try {
      answer = await this.#fetch(address, init);
    } catch (cause) {
      signal?.throwIfAborted();
      throw new Unavailable(`no server answers at ${this.url}`, {
        retryable: true,
        nextStep: "start one with 'atoll up', or name another with url or ATOLL_URL",
        cause,
      });
    }
    if (!answer.ok) {
      throw await this.#readError(answer, signal);
    }
    return answer;
  }

  async #readError(answer: Response, signal?: AbortSignal): Promise<AtollError> {
    const text = await readBody(() => answer.text(), signal);
    const seconds = answer.headers.get("retry-after");
    const retryAfterMs = seconds === null ? null : Number(seconds) * 1000 || 0;
    return parseProblem(text, retryAfterMs) ?? this.#notOurs(answer.status, text);
  }

  #notOurs(status: number, text: string): AtollError {
    const message = `${this.url} answered ${status} in no way that Atoll does: ${text.slice(0, 200)}`;
    const isPassing = PASSING.has(status);
    const kind = isPassing ? Unavailable : InternalError;
    return new kind(message, { status, retryable: isPassing });
  }
}

/** Return a path of the API with its parameters filled in. */
export function fillIn(route: string, parameters: object = {}): string {
  const values = parameters as Record<string, unknown>;
  return route.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = String(values[name] ?? "");
    return name === "path" ? value.split("/").map(encodePart).join("/") : encodeName(value, name);
  });
}

/** Wait for the body of an answer; what breaks meanwhile is an `Unavailable`. */
export async function readBody<T>(read: () => Promise<T>, signal?: AbortSignal): Promise<T> {
  try {
    return await unlessAborted(read(), signal);
  } catch (cause) {
    signal?.throwIfAborted();
    throw new Unavailable("the connection broke while the server answered", {
      retryable: true,
      cause,
    });
  }
}

/** Return a new key for what is to be done only once. */
export function newKey(): string {
  return crypto.randomUUID();
}

function encodeName(value: string, name: string): string {
  if (value === "") {
    throw new InvalidRequest(`${name} is empty; give its id`);
  }
  return encodePart(value);
}

function encodePart(part: string): string {
  // The platform would resolve these before it asks, and ask for something else altogether.
  if (part === "." || part === "..") {
    throw new InvalidRequest(`a path cannot hold ${JSON.stringify(part)} here; write it without`);
  }
  try {
    return encodeURIComponent(part);
  } catch (cause) {
    throw new InvalidRequest(`${JSON.stringify(part)} holds half a character`, { cause });
  }
}

function writeQuery(query: object = {}): string {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value])
      .filter((each) => each !== undefined && each !== null)
      .map((each) => [name, String(each)]),
  );
  return pairs.length === 0 ? "" : `?${new URLSearchParams(pairs)}`;
}

function delayBefore(
  error: unknown,
  attempt: number,
  isSafe: boolean,
  isRepeatable: boolean,
): number | null {
  if (!(error instanceof AtollError)) {
    return null;
  }
  const asked = error.retryAfterMs;
  // A server that has too many requests has not begun to do anything.
  const isRefused = error.status === TOO_MANY_REQUESTS && asked !== null;
  if (!(isRefused && isRepeatable) && !(isSafe && error.retryable)) {
    return null;
  }
  const backoff = FIRST_DELAY_MS * 2 ** attempt * (0.5 + Math.random());
  return Math.min(Math.max(backoff, asked ?? 0), MOST_DELAY_MS);
}

function parseProblem(text: string, retryAfterMs: number | null): AtollError | null {
  try {
    const problem = JSON.parse(text);
    return typeof problem?.code === "string" ? errorOf(problem, retryAfterMs) : null;
  } catch {
    return null;
  }
}

function checkUrl(url: string): string {
  if (!/^https?:\/\/[^/]/.test(url)) {
    throw new InvalidRequest(
      `${JSON.stringify(url)} is no address of a server; it is like ${DEFAULT_URL}`,
    );
  }
  return url.replace(/\/+$/, "");
}

function checkToken(token: string | undefined): string | undefined {
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
    throw new InvalidRequest("the token holds what no token does; look for spaces and line ends");
  }
  return token;
}

function readVariable(name: string): string | undefined {
  try {
    return globalThis.process?.env[name] || undefined;
  } catch {
    return undefined; // Deno without the permission
  }
}
