/** Kernels: live sessions of a sandbox, each with variables of its own. */

import {
  type Cell,
  type RunCodeOptions,
  runCode,
  type StreamCodeOptions,
  streamCode,
} from "./cell.ts";
import type { Abortable, Client } from "./client.ts";
import type { ExecutionEvent } from "./events.ts";
import type { components } from "./generated/api.ts";

/** Facts about a kernel at one moment. */
export type KernelInfo = components["schemas"]["KernelAnswer"];

/** What can replace the code from `start` to `end`. */
export interface Completions {
  matches: readonly string[];
  start: number;
  end: number;
}

/** How a kernel is opened. */
export interface KernelOptions extends Abortable {
  cwd?: string;
  env?: Readonly<Record<string, string>>;
}

type Question = Abortable & { cursor?: number };

/** The live sessions of a sandbox. */
export class Kernels {
  readonly #client: Client;
  readonly #sandbox: string;

  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** Open one more, of a language, else of what the template is about. */
  async open(language?: string, options: KernelOptions = {}): Promise<Kernel> {
    const { signal, cwd, env } = options;
    const info = await this.#client.call("post", "/sandboxes/{sandbox}/kernels", {
      path: { sandbox: this.#sandbox },
      body: {
        ...(language === undefined ? {} : { language }),
        ...(cwd === undefined ? {} : { cwd }),
        env: { ...env },
      },
      signal,
    });
    return new Kernel(this.#client, this.#sandbox, info.id, info.language);
  }

  /** List them, the oldest first. */
  list(options: Abortable = {}): Promise<KernelInfo[]> {
    const path = { sandbox: this.#sandbox };
    return this.#client.call("get", "/sandboxes/{sandbox}/kernels", { path, ...options });
  }

  /** Put a fresh one in the place of the sandbox's own of a language; files stay. */
  restart(language?: string, options: Abortable = {}): Promise<KernelInfo> {
    return this.#client.call("post", "/sandboxes/{sandbox}/kernels/restart", {
      path: { sandbox: this.#sandbox },
      body: language === undefined ? {} : { language },
      ...options,
    });
  }

  /** Interrupt the cell that runs in the sandbox's own of a language, as Ctrl-C would. */
  async interrupt(language?: string, options: Abortable = {}): Promise<void> {
    await this.#client.call("post", "/sandboxes/{sandbox}/kernels/interrupt", {
      path: { sandbox: this.#sandbox },
      body: language === undefined ? {} : { language },
      ...options,
    });
  }
}

/** A live session that was opened besides. */
export class Kernel implements AsyncDisposable {
  readonly id: string;
  readonly language: string;
  readonly #client: Client;
  readonly #sandbox: string;

  constructor(client: Client, sandbox: string, id: string, language: string) {
    this.#client = client;
    this.#sandbox = sandbox;
    this.id = id;
    this.language = language;
  }

  /** Run code to its end. */
  runCode(code: string, options: Omit<RunCodeOptions, "kernel" | "language"> = {}): Promise<Cell> {
    return runCode(this.#client, this.#sandbox, code, { ...options, kernel: this.id });
  }

  /** Run code and yield what comes of it; leaving early interrupts it. */
  streamCode(
    code: string,
    options: Omit<StreamCodeOptions, "kernel" | "language"> = {},
  ): AsyncGenerator<ExecutionEvent, void, undefined> {
    return streamCode(this.#client, this.#sandbox, code, { ...options, kernel: this.id });
  }

  /** Put a fresh one in its place, under its id; files stay. */
  restart(options: Abortable = {}): Promise<KernelInfo> {
    const route = "/sandboxes/{sandbox}/kernels/{kernel}/restart";
    return this.#client.call("post", route, { path: this.#path, ...options });
  }

  /** Interrupt the cell that runs, as Ctrl-C would. */
  async interrupt(options: Abortable = {}): Promise<void> {
    const route = "/sandboxes/{sandbox}/kernels/{kernel}/interrupt";
    await this.#client.call("post", route, { path: this.#path, ...options });
  }

  /** Return what can stand at the cursor, by default at the end. */
  async complete(code: string, options: Question = {}): Promise<Completions> {
    const reply = await this.#ask("complete", code, options);
    const matches = Array.isArray(reply.matches) ? reply.matches.map(String) : [];
    const end = options.cursor ?? code.length;
    return { matches, start: typeof reply.start === "number" ? reply.start : end, end };
  }

  /** Return what it knows of the name at the cursor, by MIME type, or null. */
  async inspect(code: string, options: Question = {}): Promise<Record<string, unknown> | null> {
    const reply = await this.#ask("inspect", code, options);
    return reply.found === true ? (reply.data as Record<string, unknown>) : null;
  }

  /** End it. */
  async close(options: Abortable = {}): Promise<void> {
    const route = "/sandboxes/{sandbox}/kernels/{kernel}";
    await this.#client.call("delete", route, { path: this.#path, ...options });
  }

  /** End it. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #ask(
    kind: "complete" | "inspect",
    code: string,
    options: Question,
  ): Promise<Record<string, unknown>> {
    return this.#client.call("post", "/sandboxes/{sandbox}/kernels/ask", {
      path: { sandbox: this.#sandbox },
      body: { kind, code, cursor: options.cursor ?? code.length, kernel: this.id },
      signal: options.signal,
      isSafe: true,
    });
  }

  get #path(): { sandbox: string; kernel: string } {
    return { sandbox: this.#sandbox, kernel: this.id };
  }
}
