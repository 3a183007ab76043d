/** Commands: programs that run in a sandbox. */

import { type Data, toBase64, toBytes, toText } from "./bytes.ts";
import type { Abortable, Client } from "./client.ts";
import { CommandFailed } from "./errors.ts";
import type { ExecutionEvent } from "./events.ts";
import {
  Execution,
  type ExecutionBody,
  type ExecutionInfo,
  feed,
  Gathered,
  type OutputCallback,
  type Tail,
} from "./execution.ts";
import type { components } from "./generated/api.ts";

/** A shell line, or a program with its arguments. */
export type Command = string | readonly string[];
/** A command that runs, or ran in the background. */
export type ProcessInfo = components["schemas"]["ProcessAnswer"];

/** How a command is run. */
export interface CommandOptions extends Abortable {
  /** Where, relative to the workspace. */
  cwd?: string;
  /** Variables besides those of the sandbox. */
  env?: Readonly<Record<string, string>>;
  /** All of its standard input; it is empty if nothing is said. */
  stdin?: Data;
  /** How long it may take; afterwards it is killed with all that it started, and that is its result. */
  timeoutMs?: number;
}

/** How a command is run and waited for. */
export interface RunOptions extends CommandOptions {
  onStdout?: OutputCallback;
  onStderr?: OutputCallback;
  /** How much of each stream the result keeps: the first MiB if nothing is said. */
  maxOutputBytes?: number;
  /** Throw `CommandFailed` unless it exits with 0. */
  check?: boolean;
}

/** How a command is started that goes on by itself. */
export interface StartOptions extends Omit<CommandOptions, "stdin"> {
  /** Whether `write` is to reach it. */
  keepStdin?: boolean;
  /** Whether it lets an unused sandbox end. */
  background?: boolean;
}

const MOST_OUTPUT_BYTES = 1 << 20;
const EXIT_TIMED_OUT = 124;
const SIGKILL = 9;
const SIGNAL_EXIT = 128;
// More than this does not go with the request, but after it.
const MOST_INLINE_BYTES = 1 << 20;

/** What came of a command. A failure or a timeout is a result, not an error. */
export class CommandResult {
  /** Null if a signal ended it. */
  readonly exitCode: number | null;
  readonly signal: number | null;
  /** `exited`, `signalled`, `timed_out`, `out_of_memory`, `too_many_processes`, `killed` or `lost`. */
  readonly reason: string;
  readonly stdoutBytes: Uint8Array;
  readonly stderrBytes: Uint8Array;
  readonly stdoutTruncated: boolean;
  readonly stderrTruncated: boolean;
  readonly durationMs: number;
  /** Whether somebody ended it. */
  readonly aborted: boolean;

  constructor(gathered: Gathered) {
    const outcome = gathered.outcome;
    const cut = (outcome.truncated ?? {}) as Record<string, boolean>;
    this.exitCode = (outcome.exit_code as number | null | undefined) ?? null;
    this.signal = (outcome.signal as number | null | undefined) ?? null;
    this.reason = String(outcome.reason ?? "lost");
    this.stdoutBytes = gathered.stdout.bytes;
    this.stderrBytes = gathered.stderr.bytes;
    this.stdoutTruncated = gathered.stdout.truncated || cut.stdout === true;
    this.stderrTruncated = gathered.stderr.truncated || cut.stderr === true;
    this.durationMs = Number(outcome.duration ?? 0) * 1000;
    this.aborted = outcome.aborted === true;
  }

  /** What it printed; a mark stands where bytes are no UTF-8. */
  get stdout(): string {
    return toText(this.stdoutBytes);
  }

  /** What it printed as errors; a mark stands where bytes are no UTF-8. */
  get stderr(): string {
    return toText(this.stderrBytes);
  }

  /** Whether it exited with 0. */
  get ok(): boolean {
    return this.exitCode === 0;
  }

  /** Whether its timeout stopped it. */
  get timedOut(): boolean {
    return this.reason === "timed_out";
  }

  /** The exit code as a shell would tell it: 124 for a timeout, 128 + n for signal n. */
  get shellCode(): number {
    if (this.timedOut) {
      return EXIT_TIMED_OUT;
    }
    return this.exitCode ?? SIGNAL_EXIT + (this.signal ?? SIGKILL);
  }

  /** Return this result; throws `CommandFailed` if the command did not exit with 0. */
  check(): this {
    if (this.ok) {
      return this;
    }
    const end =
      this.exitCode === null ? this.reason.replaceAll("_", " ") : `exited with ${this.exitCode}`;
    const tail = this.stderr.slice(-2000).trim();
    throw new CommandFailed(`command ${end}${tail === "" ? "" : `: ${tail}`}`, {
      details: { exit_code: this.exitCode, signal: this.signal, reason: this.reason },
    });
  }
}

/** Programs of a sandbox. */
export class Commands {
  readonly #client: Client;
  readonly #sandbox: string;

  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** Run a command to its end. */
  async run(command: Command, options: RunOptions = {}): Promise<CommandResult> {
    const { signal, onStdout, onStderr } = options;
    const { execution, feeding } = await startCommand(
      this.#client,
      this.#sandbox,
      command,
      options,
    );
    const gathered = new Gathered(options.maxOutputBytes ?? MOST_OUTPUT_BYTES);
    await gathered.takeAll(execution.eventsOrEnd({ signal }), { onStdout, onStderr });
    await feeding;
    const result = new CommandResult(gathered);
    return options.check ? result.check() : result;
  }

  /** Run a command and yield what it prints as it comes; the last event is its end. Leaving early ends it. */
  async *stream(
    command: Command,
    options: CommandOptions = {},
  ): AsyncGenerator<ExecutionEvent, void, undefined> {
    const { execution, feeding } = await startCommand(
      this.#client,
      this.#sandbox,
      command,
      options,
    );
    yield* execution.eventsOrEnd({ signal: options.signal });
    await feeding;
  }

  /** Start a command that goes on by itself. */
  async start(command: Command, options: StartOptions = {}): Promise<Process> {
    const body = {
      ...makeBody(command, options),
      keep_stdin: options.keepStdin ?? false,
      background: options.background ?? false,
    };
    return new Process(
      await Execution.start(this.#client, this.#sandbox, body, { signal: options.signal }),
    );
  }

  /** List commands that run, and those of the background that have ended, the oldest first. */
  list(options: Abortable = {}): Promise<ProcessInfo[]> {
    const path = { sandbox: this.#sandbox };
    return this.#client.call("get", "/sandboxes/{sandbox}/processes", { path, ...options });
  }

  /** Return a handle on a command that was started by anybody. */
  connect(id: string): Process {
    return new Process(new Execution(this.#client, id));
  }
}

/** Start a command whose events are to be read, and send it its input. */
export async function startCommand(
  client: Client,
  sandbox: string,
  command: Command,
  options: CommandOptions,
): Promise<{ execution: Execution; feeding: Promise<void> }> {
  const { signal } = options;
  const input = options.stdin === undefined ? undefined : toBytes(options.stdin);
  const isLong = input !== undefined && input.length > MOST_INLINE_BYTES;
  const body = { ...makeBody(command, options), keep_stdin: isLong };
  if (input !== undefined && !isLong) {
    body.stdin = { base64: toBase64(input) };
  }
  const execution = await Execution.start(client, sandbox, body, { signal, follow: true });
  const feeding = isLong ? feed(execution, input, { signal }) : Promise.resolve();
  feeding.catch(() => {}); // it is told when it is waited for
  return { execution, feeding };
}

/** A command that goes on by itself. */
export class Process implements AsyncIterable<ExecutionEvent> {
  readonly #execution: Execution;

  constructor(execution: Execution) {
    this.#execution = execution;
  }

  /** Its id, that of its execution. */
  get id(): string {
    return this.#execution.id;
  }

  /** Yield its events to its end; leaving early does not end it. */
  [Symbol.asyncIterator](): AsyncGenerator<ExecutionEvent, void, undefined> {
    return this.events();
  }

  /** Yield its events from number `start` on, to its end; leaving early does not end it. */
  events(start = 0, options: Abortable = {}): AsyncGenerator<ExecutionEvent, void, undefined> {
    return this.#execution.events(start, options);
  }

  /** Wait for its end, and return all that it printed. Aborting ends the waiting, not the command. */
  async wait(
    options: Omit<RunOptions, keyof CommandOptions> & Abortable = {},
  ): Promise<CommandResult> {
    const { signal, onStdout, onStderr } = options;
    const gathered = new Gathered(options.maxOutputBytes ?? MOST_OUTPUT_BYTES);
    await gathered.takeAll(this.events(0, { signal }), { onStdout, onStderr });
    const result = new CommandResult(gathered);
    return options.check ? result.check() : result;
  }

  /** Return facts about it. */
  info(options: Abortable = {}): Promise<ExecutionInfo> {
    return this.#execution.info(options);
  }

  /** Send bytes to its standard input; with `close` that is the end of it. */
  write(data: Data, options: Abortable & { close?: boolean } = {}): Promise<void> {
    return this.#execution.write(data, options);
  }

  /** Let its standard input end. */
  closeStdin(options: Abortable = {}): Promise<void> {
    return this.#execution.write("", { close: true, ...options });
  }

  /** Send a signal by its number. */
  signal(signal: number, options: Abortable = {}): Promise<void> {
    return this.#execution.signal(signal, options);
  }

  /** Ask it to end, and after `graceMs` end it and all that it started; returns at its end. */
  stop(options: Abortable & { graceMs?: number } = {}): Promise<ExecutionInfo> {
    return this.#execution.stop(options);
  }

  /** End it and all that it started, now. */
  kill(options: Abortable = {}): Promise<void> {
    return this.#execution.cancel(options);
  }

  /** Return the last bytes that it printed so far. */
  readTail(
    stream: "stdout" | "stderr" = "stdout",
    options: Abortable & { tailBytes?: number } = {},
  ): Promise<Tail> {
    return this.#execution.readTail(stream, options);
  }
}

function makeBody(command: Command, options: Omit<CommandOptions, "stdin">): ExecutionBody {
  return {
    kind: "command",
    ...(typeof command === "string" ? { command } : { argv: [...command] }),
    cwd: options.cwd ?? ".",
    env: { ...options.env },
    ...(options.timeoutMs === undefined ? {} : { timeout: options.timeoutMs / 1000 }),
  };
}
