/** What comes of an execution, as numbered events: read from lines, and from any number on. */

import { fromBase64, toBytes } from "./bytes.ts";
import { type Client, readBody } from "./client.ts";
import { AtollError, InternalError, Unavailable } from "./errors.ts";
import type { components } from "./generated/api.ts";
import { delay } from "./waiting.ts";

interface Output<T> {
  type: T;
  seq: number;
  /** Seconds since the execution started. */
  t: number;
  bytes: Uint8Array;
  /** A character whose bytes come in two events is in the second one. */
  text: string;
}

interface Value<T> {
  type: T;
  seq: number;
  /** Seconds since the execution started. */
  t: number;
  value: Record<string, unknown>;
}

type Kind = components["schemas"]["EventType"];
// One type for each kind, so that a look at the kind tells the compiler the rest.
type EachOutput<T> = T extends "stdout" | "stderr" ? Output<T> : never;
type EachValue<T> = T extends "stdout" | "stderr" ? never : Value<T>;

/** Output of a program: its bytes, and as much text as they are so far. */
export type OutputEvent = EachOutput<Kind>;
/** Anything else that an execution tells. */
export type ValueEvent = EachValue<Kind>;
/** One thing that came of an execution. */
export type ExecutionEvent = OutputEvent | ValueEvent;

type WireEvent = components["schemas"]["EventAnswer"];

// How long a server may be away, and how often it is asked for.
const PATIENCE_MS = 60_000;
const LOOK_MS = 100;

/** Yield the events of an execution from number `start` on, to its end; a connection that breaks is made anew. */
export async function* followEvents(
  client: Client,
  execution: string,
  options: { start?: number; answer?: Response; texts?: Texts; signal?: AbortSignal } = {},
): AsyncGenerator<ExecutionEvent, void, undefined> {
  const { signal, texts = new Texts() } = options;
  let { answer, start: next = 0 } = options;
  let deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    try {
      answer ??= await client.send("get", "/executions/{execution}/events", {
        path: { execution },
        query: { start: next },
        signal,
      });
      for await (const line of readLines(answer, signal)) {
        const wire = parseEvent(line);
        next = wire.seq + 1;
        deadline = Date.now() + PATIENCE_MS;
        if (wire.type === "end") {
          yield* texts.rest(wire);
        }
        yield texts.read(wire);
        if (wire.type === "end") {
          return;
        }
      }
    } catch (error) {
      if (!(error instanceof AtollError) || !error.retryable || Date.now() > deadline) {
        throw error;
      }
    }
    answer = undefined;
    if (Date.now() > deadline) {
      throw new Unavailable(`execution ${execution} broke off and tells no more`, {
        retryable: true,
      });
    }
    await delay(LOOK_MS, signal);
  }
}

/** Yield the lines of an answer as they come. */
export async function* readLines(
  answer: Response,
  signal?: AbortSignal,
): AsyncGenerator<string, void, undefined> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of readChunks(answer, signal)) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    yield* lines;
  }
}

/** Yield the body of an answer as it comes; whoever leaves early ends it. */
export async function* readChunks(
  answer: Response,
  signal?: AbortSignal,
): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = answer.body?.getReader();
  if (reader === undefined) {
    return;
  }
  try {
    for (;;) {
      const { done, value } = await readBody(() => reader.read(), signal);
      if (done) {
        return;
      }
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => {}); // it has broken already
  }
}

/** Return the event that a line, or a message of a WebSocket, holds. */
export function parseEvent(line: string): WireEvent {
  const event: WireEvent = JSON.parse(line);
  if (typeof event?.seq !== "number" || typeof event.type !== "string") {
    throw new InternalError(`this is no event of an execution: ${line.slice(0, 200)}`);
  }
  return event;
}

/** Turns events of the wire into those that callers see; texts go on from one to the next. */
export class Texts {
  readonly #decoders = { stdout: newDecoder(), stderr: newDecoder() };

  /** Return an event with its bytes and its text. */
  read(wire: WireEvent): ExecutionEvent {
    const { type, seq, t } = wire;
    if (type !== "stdout" && type !== "stderr") {
      return { type, seq, t, value: wire.value ?? {} };
    }
    const bytes = wire.text == null ? fromBase64(wire.base64 ?? "") : toBytes(wire.text);
    return { type, seq, t, bytes, text: this.#decoders[type].decode(bytes, { stream: true }) };
  }

  /** Yield marks for characters of which only a part ever came; an event before the last. */
  *rest({ seq, t }: WireEvent): Generator<OutputEvent, void, undefined> {
    for (const type of ["stdout", "stderr"] as const) {
      const text = this.#decoders[type].decode();
      if (text !== "") {
        yield { type, seq, t, bytes: new Uint8Array(), text };
      }
    }
  }
}

function newDecoder(): TextDecoder {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}
