/** Cells: pieces of code for a live session, and what comes of them. */

import { toText } from "./bytes.ts";
import type { Abortable, Client } from "./client.ts";
import { CommandFailed } from "./errors.ts";
import type { ExecutionEvent, ValueEvent } from "./events.ts";
import { Execution, type ExecutionBody, Gathered, type OutputCallback } from "./execution.ts";

/** One value in several forms, by MIME type. */
export interface Bundle {
  data: Readonly<Record<string, unknown>>;
  metadata: Readonly<Record<string, unknown>>;
  /** Whether it is the value of the cell's last expression. */
  isMain: boolean;
  displayId: string | null;
  /** Whether it takes the place of what was shown under its id. */
  isUpdate: boolean;
}

/** The exception that ended a cell; its traceback is plain text. */
export interface CellError {
  name: string;
  value: string;
  traceback: readonly string[];
}

/** How a cell ended: `died` means that its session ended with it. */
export type CellStatus = "ok" | "error" | "interrupted" | "timed_out" | "died";

/** How code is run. */
export interface StreamCodeOptions extends Abortable {
  /** Else what the template is about. */
  language?: string;
  /** The id of a kernel; else the sandbox's own of that language. */
  kernel?: string;
  /** How long it may take; afterwards it is interrupted, and that is its result. */
  timeoutMs?: number;
  /** Tell which files of the workspace it changed. */
  trackFiles?: boolean;
  /** Gives the line that `input()` in the code asks for; null is the end of input. Without it there is none. */
  onInput?: (prompt: string, isSecret: boolean) => string | null | Promise<string | null>;
}

/** How code is run and waited for. */
export interface RunCodeOptions extends StreamCodeOptions {
  onStdout?: OutputCallback;
  onStderr?: OutputCallback;
  onResult?: (bundle: Bundle) => unknown;
  onError?: (error: CellError) => unknown;
  /** How much of each stream the cell keeps: the first MiB if nothing is said. */
  maxOutputBytes?: number;
}

const MOST_OUTPUT_BYTES = 1 << 20;
// The error by which a shell tells that its last command did not succeed; its value is the code.
const EXIT_CODE = "ExitCode";
const EXIT_CODES: Partial<Record<CellStatus, number>> = { ok: 0, timed_out: 124, interrupted: 130 };

/** What came of a piece of code. An exception in it is a result, not an error. */
export class Cell {
  readonly status: CellStatus;
  readonly executionCount: number;
  readonly results: readonly Bundle[];
  readonly stdoutBytes: Uint8Array;
  readonly stderrBytes: Uint8Array;
  readonly truncated: boolean;
  readonly error: CellError | null;
  readonly durationMs: number;
  /** Why its session ended, if it did. */
  readonly death: string;
  /** Paths in the workspace, if they were asked for. */
  readonly filesChanged: readonly string[] | null;

  constructor(gathered: Gathered) {
    const { outcome, values } = gathered;
    const error = values.findLast((event) => event.type === "error");
    this.status = (outcome.status as CellStatus | undefined) ?? "died";
    this.executionCount = Number(outcome.execution_count ?? 0);
    this.results = values.filter(isShown).map(readBundle);
    this.stdoutBytes = gathered.stdout.bytes;
    this.stderrBytes = gathered.stderr.bytes;
    this.truncated =
      outcome.truncated === true || gathered.stdout.truncated || gathered.stderr.truncated;
    this.error = error === undefined ? null : readCellError(error);
    this.durationMs = Number(outcome.duration ?? 0) * 1000;
    this.death = String(outcome.reason ?? outcome.message ?? "");
    this.filesChanged = (outcome.files_changed as string[] | null | undefined) ?? null;
  }

  /** What it printed; a mark stands where bytes are no UTF-8. */
  get stdout(): string {
    return toText(this.stdoutBytes);
  }

  /** What it printed as errors; a mark stands where bytes are no UTF-8. */
  get stderr(): string {
    return toText(this.stderrBytes);
  }

  /** Whether the code ran to its end. */
  get ok(): boolean {
    return this.status === "ok";
  }

  /** What a shell would tell of it: 0 at its end, a shell's own code, 124 for a timeout, 130 if interrupted, else 1. */
  get exitCode(): number {
    if (this.error?.name === EXIT_CODE && /^\d+$/.test(this.error.value)) {
      return Number(this.error.value);
    }
    return EXIT_CODES[this.status] ?? 1;
  }

  /** The value of the last expression, or else what was displayed last. */
  get result(): Bundle | null {
    return this.results.find((bundle) => bundle.isMain) ?? this.results.at(-1) ?? null;
  }

  /** The value of the last expression as text. */
  get text(): string | null {
    const text = this.results.find((bundle) => bundle.isMain)?.data["text/plain"];
    return text === undefined ? null : String(text);
  }

  // The forms below are those of the result, or else of what was displayed last in that form.

  /** The result as HTML. */
  get html(): string | null {
    return this.#textOf("text/html");
  }

  /** The result as Markdown. */
  get markdown(): string | null {
    return this.#textOf("text/markdown");
  }

  /** The result as LaTeX. */
  get latex(): string | null {
    return this.#textOf("text/latex");
  }

  /** The result as SVG. */
  get svg(): string | null {
    return this.#textOf("image/svg+xml");
  }

  /** The result as a PNG image, in base64. */
  get png(): string | null {
    return this.#textOf("image/png");
  }

  /** The result as a JPEG image, in base64. */
  get jpeg(): string | null {
    return this.#textOf("image/jpeg");
  }

  /** The result as PDF, in base64. */
  get pdf(): string | null {
    return this.#textOf("application/pdf");
  }

  /** The result as JSON: lists and objects that are JSON come as they are. */
  get json(): unknown {
    return this.form("application/json");
  }

  /** What a figure shows: its `type`, `title`, `elements`, and what is told of its axes. */
  get chart(): Readonly<Record<string, unknown>> | null {
    const chart = this.form("application/vnd.atoll.chart+json");
    return typeof chart === "object" ? (chart as Record<string, unknown> | null) : null;
  }

  /** Return the result in any form, by its MIME type, or null. */
  form(type: string): unknown {
    const result = this.result;
    const others = this.results.filter((bundle) => bundle !== result).reverse();
    const found = [...(result === null ? [] : [result]), ...others].find(
      (each) => type in each.data,
    );
    return found === undefined ? null : found.data[type];
  }

  /** Return this cell; throws `CommandFailed` if it did not run to its end. */
  check(): this {
    if (this.ok) {
      return this;
    }
    const what =
      this.error === null ? this.death || this.status : `${this.error.name}: ${this.error.value}`;
    throw new CommandFailed(`the cell failed: ${what}`, { details: { status: this.status } });
  }

  #textOf(type: string): string | null {
    const value = this.form(type);
    return typeof value === "string" ? value : null;
  }
}

/** Run code to its end. */
export function runCode(
  client: Client,
  sandbox: string,
  code: string,
  options: RunCodeOptions = {},
): Promise<Cell> {
  return gatherCell(streamCode(client, sandbox, code, options), options);
}

/** Take events to their end, and return what came of them. */
export async function gatherCell(
  events: AsyncIterable<ExecutionEvent>,
  options: RunCodeOptions,
): Promise<Cell> {
  const gathered = new Gathered(options.maxOutputBytes ?? MOST_OUTPUT_BYTES);
  await gathered.takeAll(events, {
    onStdout: options.onStdout,
    onStderr: options.onStderr,
    onValue: (event) => tell(event, options),
  });
  return new Cell(gathered);
}

/** Run code and yield what comes of it; the last event is its end. Leaving early interrupts it. */
export async function* streamCode(
  client: Client,
  sandbox: string,
  code: string,
  options: StreamCodeOptions = {},
): AsyncGenerator<ExecutionEvent, void, undefined> {
  const { signal } = options;
  const body = makeCellBody(code, options);
  const execution = await Execution.start(client, sandbox, body, { signal, follow: true });
  for await (const event of execution.eventsOrEnd({ signal })) {
    await answerInput(event, options, (line) => execution.answer(line, { signal }));
    yield event;
  }
}

/** Have the caller give the line that an event asks for, if it does. */
export async function answerInput(
  event: ExecutionEvent,
  options: StreamCodeOptions,
  answer: (line: string | null) => unknown,
): Promise<void> {
  if (event.type === "status" && "input" in event.value && options.onInput !== undefined) {
    const { input, is_secret: isSecret } = event.value;
    await answer(await options.onInput(String(input), isSecret === true));
  }
}

/** Return what an event shows. */
export function readBundle(event: ValueEvent): Bundle {
  const { value } = event;
  return {
    data: (value.data ?? {}) as Record<string, unknown>,
    metadata: (value.metadata ?? {}) as Record<string, unknown>,
    isMain: event.type === "result",
    displayId: (value.display_id as string | null | undefined) ?? null,
    isUpdate: value.is_update === true,
  };
}

function isShown(event: ValueEvent): boolean {
  return event.type === "result" || event.type === "display";
}

function readCellError({ value }: ValueEvent): CellError {
  return {
    name: String(value.name ?? ""),
    value: String(value.value ?? ""),
    traceback: ((value.traceback ?? []) as unknown[]).map(String),
  };
}

function tell(event: ValueEvent, options: RunCodeOptions): unknown {
  if (isShown(event)) {
    return options.onResult?.(readBundle(event));
  }
  return event.type === "error" ? options.onError?.(readCellError(event)) : undefined;
}

/** Return a cell as it crosses the wire. */
export function makeCellBody(code: string, options: StreamCodeOptions): ExecutionBody {
  return {
    kind: "cell",
    code,
    ...(options.language === undefined ? {} : { language: options.language }),
    ...(options.kernel === undefined ? {} : { kernel: options.kernel }),
    ...(options.timeoutMs === undefined ? {} : { timeout: options.timeoutMs / 1000 }),
    track_files: options.trackFiles ?? false,
    ask_input: options.onInput !== undefined,
  };
}
