/**
 * Cells over one WebSocket: the quickest way to ask a kernel many times.
 *
 * Each cell has a key of its own. Where there is no WebSocket, or it breaks, the same cell is asked for by a request with that key:
 * it runs once, and its events go on where they stopped.
 */

import {
  answerInput,
  type Cell,
  gatherCell,
  makeCellBody,
  type RunCodeOptions,
  type StreamCodeOptions,
} from "./cell.ts";
import { type Abortable, type Client, fillIn, newKey } from "./client.ts";
import { errorOf, type Problem } from "./errors.ts";
import { type ExecutionEvent, followEvents, Texts } from "./events.ts";
import { Execution, type ExecutionBody } from "./execution.ts";
import type { components } from "./generated/api.ts";
import { Line } from "./line.ts";

type WireEvent = components["schemas"]["EventAnswer"];
type Message =
  | { type: "events"; id: string; execution: string; events: WireEvent[] }
  | { type: "refused"; id: string | null; error: Problem };

/** A cell on its way. */
class Run {
  readonly body: ExecutionBody;
  readonly key = newKey();
  readonly texts = new Texts();
  execution: Execution | null = null;
  /** The number of the event that comes next. */
  next = 0;
  isAsked = false;
  isOver = false;

  constructor(body: ExecutionBody) {
    this.body = body;
  }

  /** Yield what an event of the wire tells. */
  *read(wire: WireEvent): Generator<ExecutionEvent, void, undefined> {
    this.next = wire.seq + 1;
    this.isOver = wire.type === "end";
    if (this.isOver) {
      yield* this.texts.rest(wire);
    }
    yield this.texts.read(wire);
  }
}

/** One connection for cells; they run one after another, in the order of the calls. */
export class Cells implements AsyncDisposable {
  readonly #client: Client;
  readonly #sandbox: string;
  #line: Promise<Line | null> | null = null;
  #last: Promise<unknown> = Promise.resolve();

  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** Run code to its end. */
  runCode(code: string, options: RunCodeOptions = {}): Promise<Cell> {
    return gatherCell(this.streamCode(code, options), options);
  }

  /** Run code and yield what comes of it; the last event is its end. Leaving early interrupts it. */
  async *streamCode(
    code: string,
    options: StreamCodeOptions = {},
  ): AsyncGenerator<ExecutionEvent, void, undefined> {
    let leave = () => {};
    const before = this.#last;
    this.#last = new Promise<void>((resolve) => {
      leave = resolve;
    });
    try {
      await before;
      options.signal?.throwIfAborted();
      yield* this.#run(makeCellBody(code, options), options);
    } finally {
      leave();
    }
  }

  /** End the connection; what runs on it goes on. */
  async close(): Promise<void> {
    const line = await this.#line;
    this.#line = null;
    line?.close();
  }

  /** End the connection. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async *#run(
    body: ExecutionBody,
    options: StreamCodeOptions,
  ): AsyncGenerator<ExecutionEvent, void, undefined> {
    const run = new Run(body);
    try {
      yield* this.#overLine(run, options);
      if (!run.isOver) {
        yield* this.#byRequests(run, options);
      }
    } finally {
      if (!run.isOver) {
        await this.#abandon(run);
      }
    }
  }

  async *#overLine(
    run: Run,
    options: StreamCodeOptions,
  ): AsyncGenerator<ExecutionEvent, void, undefined> {
    const { signal } = options;
    for await (const message of this.#ask(run, { signal })) {
      run.execution ??= new Execution(this.#client, message.execution);
      for (const wire of message.events) {
        for (const event of run.read(wire)) {
          await answerInput(event, options, (text) => run.execution?.answer(text, { signal }));
          yield event;
        }
      }
      if (run.isOver) {
        return;
      }
    }
    this.#line = null;
  }

  async *#byRequests(
    run: Run,
    options: StreamCodeOptions,
  ): AsyncGenerator<ExecutionEvent, void, undefined> {
    const { signal } = options;
    const { body, key, next: start, texts } = run;
    run.execution ??= await Execution.start(this.#client, this.#sandbox, body, { signal, key });
    const { execution } = run;
    for await (const event of followEvents(this.#client, execution.id, { start, texts, signal })) {
      run.isOver = event.type === "end";
      await answerInput(event, options, (text) => execution.answer(text, { signal }));
      yield event;
    }
  }

  async *#ask(
    run: Run,
    options: Abortable,
  ): AsyncGenerator<Message & { type: "events" }, void, undefined> {
    const line = await this.#connect(options);
    run.isAsked = line?.send(JSON.stringify({ ...run.body, type: "run", id: run.key })) ?? false;
    if (!line || !run.isAsked) {
      return;
    }
    for await (const text of line.messages(options)) {
      const message: Message = JSON.parse(text);
      if (message.type === "refused") {
        run.isOver = true;
        throw errorOf(message.error);
      }
      if (message.id === run.key) {
        yield message;
      }
    }
  }

  /** End a cell that nobody waits for; the next one gets a connection of its own. */
  async #abandon(run: Run): Promise<void> {
    await this.close();
    const { body, key } = run;
    // As long as it says nothing only its key is known, by which the server tells its id.
    const execution =
      run.execution ??
      (run.isAsked
        ? await Execution.start(this.#client, this.#sandbox, body, { key }).catch(() => null)
        : null);
    await execution?.abandon();
  }

  async #connect(options: Abortable): Promise<Line | null> {
    const path = fillIn("/sandboxes/{sandbox}/cells", { sandbox: this.#sandbox });
    this.#line ??= (async () => {
      const socket = this.#client.openSocket(path);
      return socket === null ? null : Line.open(socket, options);
    })();
    try {
      return await this.#line;
    } catch (error) {
      this.#line = null;
      throw error;
    }
  }
}
