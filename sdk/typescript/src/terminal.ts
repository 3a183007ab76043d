/**
 * Terminals: interactive programs with a screen size.
 *
 * What is typed and shown goes over a WebSocket where the platform has one that can show a token (Deno, Bun, Node 22 and newer), else
 * by plain requests. A connection that breaks is made anew after the last event that was seen.
 */

import { type Data, toBytes } from "./bytes.ts";
import { type Abortable, type Client, fillIn } from "./client.ts";
import { errorOf } from "./errors.ts";
import { type ExecutionEvent, followEvents, parseEvent, Texts } from "./events.ts";
import { Execution, type ExecutionInfo } from "./execution.ts";
import { Line } from "./line.ts";
import type { Command } from "./process.ts";
import { delay } from "./waiting.ts";

/** How a terminal is opened. */
export interface TerminalOptions extends Abortable {
  /** What runs on it; a shell if nothing is said. */
  command?: Command;
  rows?: number;
  columns?: number;
  cwd?: string;
  env?: Readonly<Record<string, string>>;
}

const RECONNECT_MS = 100;
const WAIT_MS = 60_000;

/** The terminals of a sandbox. */
export class Terminals {
  readonly #client: Client;
  readonly #sandbox: string;

  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** Open a terminal. */
  async open(options: TerminalOptions = {}): Promise<Terminal> {
    const { command, signal } = options;
    const execution = await Execution.start(
      this.#client,
      this.#sandbox,
      {
        kind: "terminal",
        ...(typeof command === "string" ? { command } : {}),
        ...(typeof command === "object" ? { argv: [...command] } : {}),
        size: { rows: options.rows ?? 24, columns: options.columns ?? 80 },
        cwd: options.cwd ?? ".",
        env: { ...options.env },
      },
      { signal },
    );
    return Terminal.join(this.#client, execution, { signal });
  }

  /** Join a terminal that was opened by anybody. */
  connect(id: string, options: Abortable = {}): Promise<Terminal> {
    return Terminal.join(this.#client, new Execution(this.#client, id), options);
  }
}

/** An interactive program; iterate over it for what it shows. */
export class Terminal implements AsyncIterable<ExecutionEvent>, AsyncDisposable {
  readonly #client: Client;
  readonly #execution: Execution;
  #line: Line | null = null;
  #typed: Promise<unknown> = Promise.resolve();

  private constructor(client: Client, execution: Execution) {
    this.#client = client;
    this.#execution = execution;
  }

  /** Join an execution that is a terminal. */
  static async join(client: Client, execution: Execution, options: Abortable): Promise<Terminal> {
    const terminal = new Terminal(client, execution);
    terminal.#line = await terminal.#connect(0, options);
    return terminal;
  }

  /** Its id, that of its execution. */
  get id(): string {
    return this.#execution.id;
  }

  /** Yield what it shows, from the beginning to its end; leaving early does not end it. */
  [Symbol.asyncIterator](): AsyncGenerator<ExecutionEvent, void, undefined> {
    return this.events();
  }

  /** Yield what it shows, from the beginning to its end; leaving early does not end it. */
  async *events(options: Abortable = {}): AsyncGenerator<ExecutionEvent, void, undefined> {
    const texts = new Texts();
    let next = 0;
    let line = this.#line;
    while (line !== null) {
      for await (const message of line.messages(options)) {
        const wire = parseEvent(checkRefusal(message));
        next = wire.seq + 1;
        if (wire.type === "end") {
          yield* texts.rest(wire);
          this.#line = null;
        }
        yield texts.read(wire);
        if (wire.type === "end") {
          return;
        }
      }
      await delay(RECONNECT_MS, options.signal);
      line = this.#line = await this.#connect(next, options);
    }
    yield* followEvents(this.#client, this.id, { start: next, texts, ...options });
  }

  /** Type; what is typed arrives in the order of these calls. */
  write(data: Data, options: Abortable = {}): Promise<void> {
    const write = async () => {
      const bytes = toBytes(data);
      if (!this.#line?.send(bytes)) {
        await this.#execution.write(bytes, options);
      }
    };
    const written = this.#typed.then(write);
    this.#typed = written.catch(() => {}); // whoever typed that is told
    return written;
  }

  /** Change its size. */
  resize(rows: number, columns: number, options: Abortable = {}): Promise<void> {
    return this.#execution.resize(rows, columns, options);
  }

  /** Send a signal by its number. */
  signal(signal: number, options: Abortable = {}): Promise<void> {
    return this.#execution.signal(signal, options);
  }

  /** Wait for the end of its program. */
  async wait(options: Abortable = {}): Promise<ExecutionInfo> {
    for (;;) {
      const info = await this.#execution.info({ waitMs: WAIT_MS, ...options });
      if (info.state !== "running") {
        return info;
      }
    }
  }

  /** End its program and all that it started. */
  async close(options: Abortable = {}): Promise<void> {
    this.#line?.close();
    this.#line = null;
    await this.#execution.cancel(options);
  }

  /** End its program and all that it started. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #connect(start: number, options: Abortable): Promise<Line | null> {
    const path = fillIn("/executions/{execution}/attach", { execution: this.id });
    const socket = this.#client.openSocket(path, { start });
    return socket === null ? null : Line.open(socket, options);
  }
}

function checkRefusal(message: string): string {
  if (message.includes('"refused"')) {
    const parsed = JSON.parse(message);
    if (parsed.type === "refused") {
      throw errorOf(parsed.error);
    }
  }
  return message;
}
