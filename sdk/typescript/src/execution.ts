/** An execution: a command, a cell or a terminal that the server carries out, whoever is connected. */

import { type Data, Head, toBytes } from "./bytes.ts";
import { type Abortable, type Client, newKey, readBody } from "./client.ts";
import { AtollError, Conflict, InternalError, NotFound } from "./errors.ts";
import { type ExecutionEvent, followEvents, type ValueEvent } from "./events.ts";
import type { components } from "./generated/api.ts";
import { unlessAborted } from "./waiting.ts";

/** What is to be carried out, as it crosses the wire. */
export type ExecutionBody = components["schemas"]["ExecutionBody"];
/** Facts about an execution at one moment. */
export type ExecutionInfo = components["schemas"]["ExecutionAnswer"];

/** Called with each piece of output: its text, and its bytes as they are. What it returns is waited for. */
export type OutputCallback = (text: string, bytes: Uint8Array) => unknown;

/** A handle on an execution. */
export class Execution {
  readonly id: string;
  readonly #client: Client;
  #answer: Response | undefined;

  constructor(client: Client, id: string, answer?: Response) {
    this.#client = client;
    this.id = id;
    this.#answer = answer;
  }

  /**
   * Start one. With `follow` its events come with the same answer, and `events()` has to be read.
   *
   * Aborted, it is ended on the server, too, also if that has only just begun it.
   */
  static async start(
    client: Client,
    sandbox: string,
    body: ExecutionBody,
    options: Abortable & { follow?: boolean; key?: string } = {},
  ): Promise<Execution> {
    const { signal, follow = false, key = newKey() } = options;
    signal?.throwIfAborted();
    const starting = send(client, sandbox, { ...body, stream: follow }, key);
    try {
      return await unlessAborted(starting, signal);
    } catch (error) {
      if (signal?.aborted) {
        starting.then((started) => started.abandon()).catch(() => {}); // it never began
      }
      throw error;
    }
  }

  /** Yield its events from number `start` on, to its end; a connection that breaks is made anew. */
  events(start = 0, options: Abortable = {}): AsyncGenerator<ExecutionEvent, void, undefined> {
    const answer = start === 0 ? this.#answer : undefined;
    this.#answer = undefined;
    return followEvents(this.#client, this.id, { ...options, start, answer });
  }

  /** Yield its events to its end; leaving early, or aborting, ends it. */
  async *eventsOrEnd(options: Abortable = {}): AsyncGenerator<ExecutionEvent, void, undefined> {
    let isOver = false;
    try {
      for await (const event of this.events(0, options)) {
        isOver ||= event.type === "end";
        yield event;
      }
    } finally {
      if (!isOver) {
        await this.abandon();
      }
    }
  }

  /** Return facts about it; with `waitMs` at its end, or after so long. */
  info(options: Abortable & { waitMs?: number } = {}): Promise<ExecutionInfo> {
    return this.#client.call("get", "/executions/{execution}", {
      ...this.#path,
      query: { wait: (options.waitMs ?? 0) / 1000 },
      signal: options.signal,
    });
  }

  /** End it and all that it started; one that has ended is fine. */
  async cancel(options: Abortable = {}): Promise<void> {
    await this.#client.call("delete", "/executions/{execution}", { ...this.#path, ...options });
  }

  /** End it, whatever becomes of that: nobody waits for it any more. */
  async abandon(): Promise<void> {
    await this.#answer?.body?.cancel().catch(() => {});
    this.#answer = undefined;
    try {
      await this.cancel();
    } catch (error) {
      if (!(error instanceof AtollError)) {
        throw error;
      }
    }
  }

  /** Ask it to end, and after `graceMs` end it and all that it started; returns at its end. */
  stop(options: Abortable & { graceMs?: number } = {}): Promise<ExecutionInfo> {
    return this.#client.call("post", "/executions/{execution}/stop", {
      ...this.#path,
      body: { grace: (options.graceMs ?? 5000) / 1000 },
      signal: options.signal,
      isSafe: true,
    });
  }

  /** Send a signal by its number. */
  async signal(signal: number, options: Abortable = {}): Promise<void> {
    await this.#client.call("post", "/executions/{execution}/signal", {
      ...this.#path,
      body: { signal },
      ...options,
    });
  }

  /** Send bytes to its standard input; with `close` that is the end of it. */
  async write(data: Data, options: Abortable & { close?: boolean } = {}): Promise<void> {
    await this.#client.call("post", "/executions/{execution}/stdin", {
      ...this.#path,
      query: { close: options.close ?? false },
      data: toBytes(data),
      signal: options.signal,
    });
  }

  /** Give a cell the line that it asks for; null is the end of its input. */
  async answer(text: string | null, options: Abortable = {}): Promise<void> {
    await this.#client.call("post", "/executions/{execution}/input", {
      ...this.#path,
      body: { text },
      ...options,
    });
  }

  /** Change the size of a terminal. */
  async resize(rows: number, columns: number, options: Abortable = {}): Promise<void> {
    await this.#client.call("post", "/executions/{execution}/resize", {
      ...this.#path,
      body: { rows, columns },
      isSafe: true,
      ...options,
    });
  }

  /** Return the last bytes of an output so far. */
  async readTail(
    stream: "stdout" | "stderr",
    options: Abortable & { tailBytes?: number } = {},
  ): Promise<Tail> {
    const answer = await this.#client.send("get", "/executions/{execution}/logs", {
      ...this.#path,
      query: {
        stream,
        ...(options.tailBytes === undefined ? {} : { tail_bytes: options.tailBytes }),
      },
      signal: options.signal,
    });
    const bytes = new Uint8Array(await readBody(() => answer.arrayBuffer(), options.signal));
    const total = Number(answer.headers.get("atoll-total-bytes"));
    const truncated = answer.headers.get("atoll-truncated") === "true" || total > bytes.length;
    return { bytes, totalBytes: total, truncated };
  }

  get #path(): { path: { execution: string } } {
    return { path: { execution: this.id } };
  }
}

/** The end of an output. */
export interface Tail {
  bytes: Uint8Array;
  /** How much there is in all. */
  totalBytes: number;
  /** Whether there was more than this. */
  truncated: boolean;
}

async function send(
  client: Client,
  sandbox: string,
  body: ExecutionBody,
  key: string,
): Promise<Execution> {
  const path = { sandbox };
  const answer = await client.send("post", "/sandboxes/{sandbox}/executions", {
    path,
    body,
    key,
  });
  const id = answer.headers.get("atoll-execution");
  if (id === null) {
    throw new InternalError("the server does not say which execution it began");
  }
  if (body.stream) {
    return new Execution(client, id, answer);
  }
  await readBody(() => answer.arrayBuffer());
  return new Execution(client, id);
}

/** What is done with events while they come. */
export interface Listeners {
  onStdout?: OutputCallback;
  onStderr?: OutputCallback;
  onValue?: (event: ValueEvent) => unknown;
}

/** Output and outcome of an execution; of each stream the beginning, up to a size. */
export class Gathered {
  readonly stdout: Head;
  readonly stderr: Head;
  readonly values: ValueEvent[] = [];
  outcome: Readonly<Record<string, unknown>> = {};

  constructor(mostBytes: number) {
    this.stdout = new Head(mostBytes);
    this.stderr = new Head(mostBytes);
  }

  /** Take events to their end. */
  async takeAll(events: AsyncIterable<ExecutionEvent>, listeners: Listeners = {}): Promise<this> {
    for await (const event of events) {
      this.take(event);
      await tell(event, listeners);
    }
    return this;
  }

  /** Take an event. */
  take(event: ExecutionEvent): void {
    if (event.type === "stdout" || event.type === "stderr") {
      this[event.type].take(event.bytes);
    } else if (event.type === "end") {
      this.outcome = event.value;
    } else {
      this.values.push(event);
    }
  }
}

function tell(event: ExecutionEvent, listeners: Listeners): unknown {
  switch (event.type) {
    case "stdout":
      return listeners.onStdout?.(event.text, event.bytes);
    case "stderr":
      return listeners.onStderr?.(event.text, event.bytes);
    default:
      return listeners.onValue?.(event);
  }
}

/** Send all input to what may end before it has read it. */
export async function feed(
  execution: Execution,
  data: Uint8Array,
  options: Abortable,
): Promise<void> {
  try {
    await execution.write(data, { close: true, ...options });
  } catch (error) {
    // It has ended, or reads no more, as programs may.
    if (!(error instanceof NotFound || error instanceof Conflict)) {
      throw error;
    }
  }
}
