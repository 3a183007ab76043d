/** One session: commands, files, processes and ports of a sandbox. */

import { toBytes, toText } from "../bytes.ts";
import { Gathered } from "../execution.ts";
import { CommandResult, type Process, startCommand } from "../process.ts";
import type { PublishedPort } from "../publishing.ts";
import type { Sandbox, SandboxOptions } from "../sandbox.ts";
import { delay } from "../waiting.ts";
import {
  asTheirs,
  SandboxError,
  SandboxFileSizeError,
  SandboxPortError,
  SandboxProcessError,
  SandboxSessionDestroyedError,
  SandboxTimeoutError,
  withTheirErrors,
} from "./errors.ts";
import { WORKDIR } from "./options.ts";
import { checkPath } from "./paths.ts";
import type {
  DockerSandboxOptions,
  SandboxExecEvent,
  SandboxExecOptions,
  SandboxExecResult,
  SandboxExecStreamEvent,
  SandboxFileEntry,
  SandboxHooks,
  SandboxLimits,
  SandboxPortSession,
  SandboxProcessInfo,
  SandboxProcessLogs,
  SandboxProcessLogsOptions,
  SandboxProcessSession,
  SandboxProcessStartOptions,
  SandboxProcessStopOptions,
  SandboxPublishedPort,
  SandboxSessionEvent,
  SandboxTextFileReadOptions,
  SandboxTextFileReadResult,
  SandboxWaitForPortOptions,
} from "./types.ts";

const TIMEOUT_MS = 30_000;
const MOST_OUTPUT_BYTES = 1 << 20;
const MOST_PROCESSES = 4;
const TAIL_BYTES = 64 * 1024;
const PAGE_LINES = 500;
const PAGE_BYTES = 64 * 1024;
const GRACE_MS = 5_000;
const PORT_WAIT_MS = 30_000;
const PORT_LOOK_MS = 250;
const ABORTED_EXIT = 130;
const SIGNAL_EXIT = 128;

/** A place with a workspace, until it is destroyed. */
export class DockerSandboxSession
  implements SandboxPortSession, SandboxProcessSession, AsyncDisposable
{
  readonly id: string;
  readonly provider = "docker";
  readonly workdir = WORKDIR;
  readonly metadata: Readonly<Record<string, string>>;
  readonly publishedPorts: readonly SandboxPublishedPort[];
  /** The sandbox itself, with all that Atoll can do beyond this. */
  readonly sandbox: Sandbox;
  readonly #limits: SandboxLimits;
  readonly #hooks: SandboxHooks;
  readonly #published: readonly PublishedPort[];
  readonly #processes = new Map<string, Process>();
  #starting = 0;
  #ending: Promise<void> | null = null;

  constructor(
    sandbox: Sandbox,
    wanted: SandboxOptions,
    options: DockerSandboxOptions,
    published: readonly PublishedPort[],
  ) {
    this.sandbox = sandbox;
    this.id = wanted.name ?? sandbox.id;
    this.metadata = { ...wanted.metadata };
    this.#limits = options.limits ?? {};
    this.#hooks = options.hooks ?? {};
    this.#published = published;
    this.publishedPorts = published.map(({ port, host, hostPort }) => ({
      containerPort: port,
      host,
      hostPort,
      protocol: "tcp",
    }));
  }

  /** Tell that it is there. */
  async announce(): Promise<void> {
    await this.#hooks.onSessionCreate?.(this.#event);
  }

  /** Run a program to its end. A failure, a timeout or an abort is a result. */
  async exec(options: SandboxExecOptions): Promise<SandboxExecResult> {
    for await (const event of this.execStream(options)) {
      if (event.type === "exit") {
        return event.result;
      }
    }
    throw new SandboxSessionDestroyedError(`session ${this.id} ended before the command did`);
  }

  /** Run a program and yield what it prints as it comes; the last event has the result. Leaving early ends it. */
  async *execStream(
    options: SandboxExecOptions,
  ): AsyncGenerator<SandboxExecStreamEvent, void, undefined> {
    this.#check();
    const event = this.#describe(options);
    await this.#hooks.onExecStart?.(event);
    const result = options.signal?.aborted ? NEVER_RUN : yield* this.#run(options, event);
    await this.#hooks.onExecEnd?.({ ...event, result });
    yield { type: "exit", result };
  }

  /** Read a file as it is. */
  async readFile(path: string): Promise<Uint8Array> {
    this.#check();
    const most = this.#limits.maxFileBytes;
    const options = most === undefined ? {} : { length: most + 1 };
    const bytes = await withTheirErrors(this.sandbox.files.readBytes(checkPath(path), options));
    this.#checkSize(path, bytes.length);
    return bytes;
  }

  /** Read a file as text; a mark stands where bytes are no UTF-8. */
  async readTextFile(path: string): Promise<string> {
    return toText(await this.readFile(path));
  }

  /** Read some lines of a text file. */
  async readTextFilePage(
    path: string,
    options: SandboxTextFileReadOptions = {},
  ): Promise<SandboxTextFileReadResult> {
    this.#check();
    const { startLine = 1, lineCount = PAGE_LINES, maxBytes = PAGE_BYTES } = options;
    const page = await withTheirErrors(
      this.sandbox.files.readPage(checkPath(path), { startLine, lines: lineCount, maxBytes }),
    );
    return {
      content: page.text,
      startLine: page.start_line,
      endLine: page.end_line,
      nextStartLine: page.next_line,
      truncated: page.cut_by !== null,
      truncatedBy: page.cut_by as "lines" | "bytes" | null,
    };
  }

  /** Write a file; its parents are made. */
  async writeFile(path: string, data: string | Uint8Array): Promise<void> {
    this.#check();
    const bytes = toBytes(data);
    this.#checkSize(path, bytes.length);
    const place = checkPath(path);
    await withTheirErrors(this.sandbox.files.write(place, bytes));
    await this.#hooks.onFileWrite?.({ ...this.#event, path: place, size: bytes.length });
  }

  /** Write a text file; its parents are made. */
  writeTextFile(path: string, content: string): Promise<void> {
    return this.writeFile(path, content);
  }

  /** List one level of a directory. */
  async listFiles(path = "."): Promise<SandboxFileEntry[]> {
    this.#check();
    const entries = await withTheirErrors(this.sandbox.files.list(checkPath(path)));
    return entries.map(({ path, kind, size }) => ({ path, type: kind, size }));
  }

  /** Start a program in the background. */
  async startProcess(options: SandboxProcessStartOptions): Promise<SandboxProcessInfo> {
    this.#check();
    const event = this.#describe(options);
    this.#starting += 1;
    try {
      await this.#makeRoom();
      const { cwd, env } = options;
      const command = [event.command, ...event.args];
      const place = cwd === undefined ? undefined : checkPath(cwd);
      const process = await withTheirErrors(
        this.sandbox.commands.start(command, { cwd: place, env, background: true }),
      );
      this.#processes.set(process.id, process);
      await this.#hooks.onExecStart?.(event);
      this.#watch(process, event);
      return this.#findInfo(process.id);
    } finally {
      this.#starting -= 1;
    }
  }

  /** List the programs that were started in the background, the oldest first. */
  async listProcesses(): Promise<SandboxProcessInfo[]> {
    this.#check();
    const found = await withTheirErrors(this.sandbox.commands.list());
    const byId = new Map(found.map((each) => [each.id, each]));
    return [...this.#processes.keys()].flatMap((id) => {
      const each = byId.get(id);
      if (each === undefined) {
        return [];
      }
      const [command = "", ...args] = each.argv;
      const code = each.exit_code ?? (each.signal === null ? undefined : SIGNAL_EXIT + each.signal);
      return {
        id,
        command,
        args,
        ...(each.cwd === "." ? {} : { cwd: each.cwd }),
        status: each.status,
        ...(code === undefined ? {} : { exitCode: code }),
        startedAt: each.started_at,
        ...(each.ended_at === null ? {} : { endedAt: each.ended_at }),
      };
    });
  }

  /** Read the last bytes that a background program printed: 64 KiB of each stream if nothing is said. */
  async readProcessLogs(
    processId: string,
    options: SandboxProcessLogsOptions = {},
  ): Promise<SandboxProcessLogs> {
    const process = this.#findProcess(processId);
    const { tailBytes = TAIL_BYTES } = options;
    if (!Number.isInteger(tailBytes) || tailBytes < 0 || tailBytes > MOST_OUTPUT_BYTES) {
      throw new SandboxProcessError(`tailBytes ${tailBytes} is not 0 to ${MOST_OUTPUT_BYTES}`);
    }
    const [out, err] = await withTheirErrors(
      Promise.all([
        process.readTail("stdout", { tailBytes }),
        process.readTail("stderr", { tailBytes }),
      ]),
    );
    return {
      stdout: textOfTail(out.bytes, out.truncated),
      stderr: textOfTail(err.bytes, err.truncated),
      stdoutTruncated: out.truncated,
      stderrTruncated: err.truncated,
    };
  }

  /** End a background program and all that it started: asked first, and forced after the grace of 5 s. */
  async stopProcess(
    processId: string,
    options: SandboxProcessStopOptions = {},
  ): Promise<SandboxProcessInfo> {
    const process = this.#findProcess(processId);
    await withTheirErrors(process.stop({ graceMs: options.gracePeriodMs ?? GRACE_MS }));
    return this.#findInfo(processId);
  }

  /** Wait until a published port is served on all interfaces of the sandbox; throws `SandboxTimeoutError`. */
  async waitForPort(
    containerPort: number,
    options: SandboxWaitForPortOptions = {},
  ): Promise<SandboxPublishedPort> {
    const { timeoutMs = PORT_WAIT_MS, intervalMs = PORT_LOOK_MS, signal } = options;
    const port = this.publishedPorts.find((each) => each.containerPort === containerPort);
    if (port === undefined) {
      throw new SandboxPortError(
        `port ${containerPort} is not published; name it in createSession({ ports: [${containerPort}] })`,
      );
    }
    const deadline = Date.now() + timeoutMs;
    for (;;) {
      this.#check();
      const found = await withTheirErrors(this.sandbox.ports.list({ signal }));
      if (found.some((each) => each.port === containerPort && !each.is_loopback)) {
        return port;
      }
      if (Date.now() + intervalMs > deadline) {
        throw new SandboxTimeoutError(
          `nothing listens on port ${containerPort} of all interfaces after ${timeoutMs} ms; servers have to listen on 0.0.0.0`,
        );
      }
      await delay(intervalMs, signal);
    }
  }

  /** End everything in it, and remove it with its files unless its workspace is kept; safe to call twice. */
  destroy(): Promise<void> {
    this.#ending ??= this.#end();
    return this.#ending;
  }

  /** Destroy it. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.destroy();
  }

  async #end(): Promise<void> {
    await Promise.all(this.#published.map((port) => port.close()));
    await withTheirErrors(this.sandbox.destroy());
    await this.#hooks.onDestroy?.(this.#event);
  }

  get #event(): SandboxSessionEvent {
    return { sessionId: this.id, provider: this.provider, workdir: this.workdir };
  }

  #describe(options: SandboxExecOptions | SandboxProcessStartOptions): SandboxExecEvent {
    const { command, args = [], cwd } = options;
    if (typeof command !== "string" || command.trim() === "") {
      throw new SandboxError("command is empty; name a program");
    }
    return { ...this.#event, command, args: [...args], ...(cwd === undefined ? {} : { cwd }) };
  }

  async *#run(
    options: SandboxExecOptions,
    { command, args }: SandboxExecEvent,
  ): AsyncGenerator<SandboxExecStreamEvent, SandboxExecResult, undefined> {
    const { signal, env, input } = options;
    const cwd = options.cwd === undefined ? undefined : checkPath(options.cwd);
    const timeoutMs = options.timeoutMs ?? this.#limits.timeoutMs ?? TIMEOUT_MS;
    const gathered = new Gathered(this.#limits.maxOutputBytes ?? MOST_OUTPUT_BYTES);
    const { execution, feeding } = await withTheirErrors(
      startCommand(this.sandbox.client, this.sandbox.id, [command, ...args], {
        cwd,
        env,
        timeoutMs,
        stdin: input,
      }),
    );
    // Its end is waited for, so that what it printed until then is not lost.
    const abort = () => void execution.abandon();
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) {
      abort();
    }
    try {
      for await (const event of execution.eventsOrEnd()) {
        gathered.take(event);
        if (event.type === "stdout" || event.type === "stderr") {
          await (event.type === "stdout" ? options.onStdout : options.onStderr)?.(event.bytes);
          yield { type: event.type, chunk: event.bytes, text: event.text };
        }
      }
      await feeding;
    } catch (error) {
      throw asTheirs(error);
    } finally {
      signal?.removeEventListener("abort", abort);
    }
    return toResult(new CommandResult(gathered), signal);
  }

  async #makeRoom(): Promise<void> {
    const most = this.#limits.maxProcesses ?? MOST_PROCESSES;
    const found = await this.listProcesses();
    const running = found.filter((each) => each.status === "running").length;
    if (running + this.#starting > most) {
      throw new SandboxProcessError(
        `${running} processes run, the most is ${most}; stop one, or raise limits.maxProcesses`,
      );
    }
    const over = found.filter((each) => each.status !== "running");
    for (const { id } of over.slice(0, Math.max(0, this.#processes.size + this.#starting - most))) {
      this.#processes.delete(id);
    }
  }

  #watch(process: Process, event: SandboxExecEvent): void {
    const { onExecEnd } = this.#hooks;
    if (onExecEnd !== undefined) {
      const tell = async () => {
        const result = toResult(await process.wait());
        await onExecEnd({ ...event, result });
      };
      tell().catch(() => {}); // it went with its session
    }
  }

  async #findInfo(id: string): Promise<SandboxProcessInfo> {
    const found = (await this.listProcesses()).find((each) => each.id === id);
    if (found === undefined) {
      throw new SandboxProcessError(`process ${id} is no more`);
    }
    return found;
  }

  #findProcess(id: string): Process {
    this.#check();
    const process = this.#processes.get(id);
    if (process === undefined) {
      throw new SandboxProcessError(`there is no process ${id}; list them to see which there are`);
    }
    return process;
  }

  #check(): void {
    if (this.#ending !== null) {
      throw new SandboxSessionDestroyedError(
        `session ${this.id} was destroyed; create another one`,
      );
    }
  }

  #checkSize(path: string, size: number): void {
    const most = this.#limits.maxFileBytes;
    if (most !== undefined && size > most) {
      throw new SandboxFileSizeError(
        `${path} is larger than ${most} bytes; raise limits.maxFileBytes`,
      );
    }
  }
}

const NEVER_RUN: SandboxExecResult = {
  stdout: "",
  stderr: "",
  exitCode: ABORTED_EXIT,
  durationMs: 0,
  timedOut: false,
  aborted: true,
  stdoutTruncated: false,
  stderrTruncated: false,
};

function toResult(result: CommandResult, signal?: AbortSignal): SandboxExecResult {
  return {
    stdout: result.stdout,
    stderr: result.stderr,
    exitCode: result.shellCode,
    durationMs: result.durationMs,
    timedOut: result.timedOut,
    aborted: result.exitCode === null && (result.aborted || signal?.aborted === true),
    stdoutTruncated: result.stdoutTruncated,
    stderrTruncated: result.stderrTruncated,
  };
}

function textOfTail(bytes: Uint8Array, isCut: boolean): string {
  // A cut may fall inside a character, whose rest is no text.
  const start = isCut ? bytes.findIndex((byte) => (byte & 0xc0) !== 0x80) : 0;
  return toText(bytes.subarray(Math.max(start, 0)));
}
