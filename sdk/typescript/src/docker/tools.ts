/** A session as tools for an agent: each with a description for the model, and a policy that it cannot pass. */

import { toBytes } from "../bytes.ts";
import { SandboxToolPolicyError } from "./errors.ts";
import { checkInput, describeInput, type InputSchema, type Schema } from "./inputs.ts";
import {
  isSandboxPortSession,
  isSandboxProcessSession,
  type SandboxExecOptions,
  type SandboxExecResult,
  type SandboxPortSession,
  type SandboxProcessInfo,
  type SandboxProcessSession,
  type SandboxProcessStartOptions,
  type SandboxSession,
  type SandboxTextFileReadResult,
} from "./types.ts";

const NAMES = [
  "exec_command",
  "read_file",
  "write_file",
  "list_files",
  "list_ports",
  "start_process",
  "list_processes",
  "read_process_logs",
  "stop_process",
  "wait_for_port",
] as const;
export type SandboxToolName = (typeof NAMES)[number];

export type SandboxExecToolPolicy = {
  allowedCommands?: readonly string[];
  /** A program of such a name is refused wherever it lies. */
  blockedCommands?: readonly string[];
  defaultTimeoutMs?: number;
  maxTimeoutMs?: number;
};

export type SandboxFileToolPolicy = { maxBytes?: number };

export type SandboxReadFileToolPolicy = SandboxFileToolPolicy & {
  defaultLineCount?: number;
  maxLineCount?: number;
};

export type SandboxProcessToolPolicy = {
  maxLogBytes?: number;
  defaultWaitTimeoutMs?: number;
  maxWaitTimeoutMs?: number;
  stopGracePeriodMs?: number;
};

export type SandboxToolsOptions = {
  /** Which tools there are: exec_command, read_file, write_file and list_files if nothing is said. */
  allow?: readonly SandboxToolName[];
  /** Another name of `allow`. */
  include?: readonly SandboxToolName[];
  /** Another name of `exec.defaultTimeoutMs`. */
  execTimeoutMs?: number;
  exec?: SandboxExecToolPolicy;
  readFile?: SandboxReadFileToolPolicy;
  writeFile?: SandboxFileToolPolicy;
  process?: SandboxProcessToolPolicy;
};

/** A tool for an agent. */
export interface SandboxTool {
  readonly name: SandboxToolName;
  readonly description: string;
  /** What it takes, as JSON Schema. */
  readonly parameters: InputSchema;
  /** Return all that a model is told about it. */
  definition(): { name: SandboxToolName; description: string; parameters: InputSchema };
  /** Do it; returns the text for the model. Throws `SandboxToolPolicyError` for what its policy forbids. */
  execute(input: unknown, options?: { signal?: AbortSignal }): Promise<string>;
  /** The same under another name. */
  call(input: unknown, options?: { signal?: AbortSignal }): Promise<string>;
}

export type SandboxToolsFactory = (
  session: SandboxSession,
  options?: SandboxToolsOptions,
) => SandboxTool[];

const DEFAULT_NAMES: readonly SandboxToolName[] = NAMES.slice(0, 4);
const MOST_TIMEOUT_MS = 300_000;
const DEFAULT_TIMEOUT_MS = 30_000;
const LINES = { usual: 500, most: 2000, ever: 10_000 };
const READ_BYTES = { usual: 64 * 1024, ever: 1 << 20 };
const LOG_BYTES = { usual: 64 * 1024, ever: 1 << 20 };
const GRACE_MS = 5_000;
const MOST_PORT = 65_535;

/** Return tools for a session; throws `SandboxToolPolicyError` for a policy that cannot be. */
export function createSandboxTools(
  session: SandboxSession,
  options: SandboxToolsOptions = {},
): SandboxTool[] {
  const names = options.allow ?? options.include ?? DEFAULT_NAMES;
  for (const name of names) {
    if (!NAMES.includes(name)) {
      throw new SandboxToolPolicyError(`there is no tool ${name}; there is: ${NAMES.join(", ")}`);
    }
  }
  const policy = new Policy(options);
  return [...new Set(names)].map((name) => makeTool(name, MAKERS[name](session, policy)));
}

/** What the tools may do, checked once. */
class Policy {
  readonly allowed: ReadonlySet<string> | null;
  readonly blocked: ReadonlySet<string>;
  readonly timeoutMs: number;
  readonly maxTimeoutMs: number;
  readonly lines: number;
  readonly maxLines: number;
  readonly maxReadBytes: number;
  readonly maxWriteBytes: number;
  readonly maxLogBytes: number;
  readonly waitMs: number;
  readonly maxWaitMs: number;
  readonly graceMs: number;

  constructor(options: SandboxToolsOptions) {
    const { exec = {}, readFile = {}, writeFile = {}, process = {} } = options;
    this.allowed = exec.allowedCommands === undefined ? null : new Set(exec.allowedCommands);
    this.blocked = new Set(exec.blockedCommands);
    this.maxTimeoutMs = within("exec.maxTimeoutMs", exec.maxTimeoutMs, 1, MOST_TIMEOUT_MS);
    const timeoutMs = exec.defaultTimeoutMs ?? options.execTimeoutMs;
    this.timeoutMs = within(
      "exec.defaultTimeoutMs",
      timeoutMs,
      1,
      this.maxTimeoutMs,
      DEFAULT_TIMEOUT_MS,
    );
    this.maxLines = within(
      "readFile.maxLineCount",
      readFile.maxLineCount,
      1,
      LINES.ever,
      LINES.most,
    );
    const lines = readFile.defaultLineCount;
    this.lines = within("readFile.defaultLineCount", lines, 1, this.maxLines, LINES.usual);
    this.maxReadBytes = within(
      "readFile.maxBytes",
      readFile.maxBytes,
      1,
      READ_BYTES.ever,
      READ_BYTES.usual,
    );
    this.maxWriteBytes = within(
      "writeFile.maxBytes",
      writeFile.maxBytes,
      0,
      Number.MAX_SAFE_INTEGER,
    );
    this.maxLogBytes = within(
      "process.maxLogBytes",
      process.maxLogBytes,
      0,
      LOG_BYTES.ever,
      LOG_BYTES.usual,
    );
    this.maxWaitMs = within(
      "process.maxWaitTimeoutMs",
      process.maxWaitTimeoutMs,
      1,
      MOST_TIMEOUT_MS,
    );
    const waitMs = process.defaultWaitTimeoutMs;
    this.waitMs = within(
      "process.defaultWaitTimeoutMs",
      waitMs,
      1,
      this.maxWaitMs,
      DEFAULT_TIMEOUT_MS,
    );
    this.graceMs = within(
      "process.stopGracePeriodMs",
      process.stopGracePeriodMs,
      0,
      MOST_TIMEOUT_MS,
      GRACE_MS,
    );
  }

  checkCommand(command: string): void {
    const name = command.split("/").at(-1) ?? command;
    if (this.blocked.has(command) || this.blocked.has(name)) {
      throw new SandboxToolPolicyError(`command ${command} is blocked`);
    }
    if (this.allowed !== null && !this.allowed.has(command)) {
      throw new SandboxToolPolicyError(
        `command ${command} is not allowed; there is: ${[...this.allowed].join(", ")}`,
      );
    }
  }
}

/** Return a number of a policy, or what is usual as far as `most` lets it. */
function within(
  name: string,
  value: number | undefined,
  least: number,
  most: number,
  usual = most,
): number {
  if (value === undefined) {
    return Math.min(usual, most);
  }
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new SandboxToolPolicyError(
      `${name} ${value} is no whole number from ${least} to ${most}`,
    );
  }
  return value;
}

function atMost(what: string, value: number, most: number): number {
  if (value > most) {
    throw new SandboxToolPolicyError(
      `${what} ${value} is more than ${most}, the most there may be`,
    );
  }
  return value;
}

interface Recipe<T> {
  description: string;
  fields: Readonly<Record<string, Schema>>;
  run: (input: T, signal?: AbortSignal) => Promise<string>;
}

function makeTool(name: SandboxToolName, recipe: Recipe<never>): SandboxTool {
  const { description, run } = recipe;
  const parameters = describeInput(recipe.fields);
  const execute: SandboxTool["execute"] = async (input, options) =>
    run(checkInput(parameters, input), options?.signal);
  const definition = () => ({ name, description, parameters });
  return { name, description, parameters, definition, execute, call: execute };
}

const text = (description: string, minLength = 0): Schema => ({
  type: "string",
  description,
  minLength,
});
const whole = (description: string, minimum: number, maximum: number): Schema => ({
  type: "integer",
  description,
  minimum,
  maximum,
});
const COMMAND: Readonly<Record<string, Schema>> = {
  command: text("The program to run; no shell reads it.", 1),
  "args?": { type: "array", description: "Its arguments.", items: { type: "string" } },
  "cwd?": text("Where it runs, relative to the workspace."),
  "env?": {
    type: "object",
    description: "Variables besides those of the sandbox.",
    additionalProperties: { type: "string" },
  },
};
const PATH = text("A path relative to the workspace.", 1);
const PROCESS_ID = text("The id that start_process returned.", 1);

type Maker = (session: SandboxSession, policy: Policy) => Recipe<never>;

const MAKERS: Readonly<Record<SandboxToolName, Maker>> = {
  exec_command: (session, policy): Recipe<SandboxExecOptions> => ({
    description: "Run a program in the sandbox and return its exit code and what it printed.",
    fields: {
      ...COMMAND,
      "timeoutMs?": whole("How long it may take, in milliseconds.", 1, MOST_TIMEOUT_MS),
      "input?": text("What it reads from standard input."),
    },
    run: async (input, signal) => {
      policy.checkCommand(input.command);
      const timeoutMs = atMost(
        "timeoutMs",
        input.timeoutMs ?? policy.timeoutMs,
        policy.maxTimeoutMs,
      );
      return formatResult(await session.exec({ ...input, timeoutMs, signal }));
    },
  }),
  read_file: (session, policy): Recipe<ReadInput> => ({
    description: "Read lines of a text file of the workspace.",
    fields: {
      path: PATH,
      "startLine?": whole("The first line; 1 if left out.", 1, Number.MAX_SAFE_INTEGER),
      "lineCount?": whole("How many lines.", 1, LINES.ever),
    },
    run: async (input) => {
      const lineCount = atMost("lineCount", input.lineCount ?? policy.lines, policy.maxLines);
      const { path, startLine = 1 } = input;
      if (session.readTextFilePage === undefined) {
        const content = await session.readTextFile(path);
        atMost(`${path}: size`, toBytes(content).length, policy.maxReadBytes);
        return content;
      }
      const options = { startLine, lineCount, maxBytes: policy.maxReadBytes };
      return formatPage(await session.readTextFilePage(path, options));
    },
  }),
  write_file: (session, policy): Recipe<{ path: string; content: string }> => ({
    description: "Write a text file of the workspace; directories are made as needed.",
    fields: { path: PATH, content: text("All that the file is to hold.") },
    run: async ({ path, content }) => {
      const size = atMost(`${path}: size`, toBytes(content).length, policy.maxWriteBytes);
      await session.writeTextFile(path, content);
      return `wrote ${size} bytes to ${path}`;
    },
  }),
  list_files: (session): Recipe<{ path?: string }> => ({
    description: "List one level of a directory of the workspace.",
    fields: {
      "path?": text("A directory relative to the workspace; the workspace itself if left out."),
    },
    run: async ({ path }) => {
      const entries = await session.listFiles(path || ".");
      const lines = entries.map(({ type, path: each, size }) => `${type}\t${size ?? ""}\t${each}`);
      return lines.join("\n") || "(empty)";
    },
  }),
  list_ports: (session): Recipe<object> => {
    const ports = withPorts(session);
    return {
      description: "List the ports that lead into the sandbox.",
      fields: {},
      run: async () => ports.publishedPorts.map(formatPort).join("\n") || "(none)",
    };
  },
  start_process: (session, policy): Recipe<SandboxProcessStartOptions> => {
    const processes = withProcesses(session);
    return {
      description: "Start a program in the background, such as a server, and return its id.",
      fields: COMMAND,
      run: async (input) => {
        policy.checkCommand(input.command);
        return formatProcess(await processes.startProcess(input));
      },
    };
  },
  list_processes: (session): Recipe<object> => {
    const processes = withProcesses(session);
    return {
      description: "List the programs that were started in the background.",
      fields: {},
      run: async () =>
        (await processes.listProcesses()).map(formatProcess).join("\n\n") || "(none)",
    };
  },
  read_process_logs: (session, policy): Recipe<{ processId: string; tailBytes?: number }> => {
    const processes = withProcesses(session);
    return {
      description: "Read the end of what a background program printed.",
      fields: {
        processId: PROCESS_ID,
        "tailBytes?": whole("How much of each stream.", 0, LOG_BYTES.ever),
      },
      run: async (input) => {
        const wanted = input.tailBytes ?? policy.maxLogBytes;
        const tailBytes = atMost("tailBytes", wanted, policy.maxLogBytes);
        const logs = await processes.readProcessLogs(input.processId, { tailBytes });
        return formatStreams([], logs);
      },
    };
  },
  stop_process: (session, policy): Recipe<{ processId: string }> => {
    const processes = withProcesses(session);
    return {
      description: "End a background program and all that it started.",
      fields: { processId: PROCESS_ID },
      run: async ({ processId }) =>
        formatProcess(await processes.stopProcess(processId, { gracePeriodMs: policy.graceMs })),
    };
  },
  wait_for_port: (session, policy): Recipe<{ containerPort: number; timeoutMs?: number }> => {
    const ports = withPorts(session);
    return {
      description: "Wait until a program in the sandbox listens on a port.",
      fields: {
        containerPort: whole("The port inside the sandbox.", 1, MOST_PORT),
        "timeoutMs?": whole("How long to wait, in milliseconds.", 1, MOST_TIMEOUT_MS),
      },
      run: async (input, signal) => {
        const timeoutMs = atMost("timeoutMs", input.timeoutMs ?? policy.waitMs, policy.maxWaitMs);
        const port = await ports.waitForPort(input.containerPort, { timeoutMs, signal });
        return `ready: ${formatPort(port)}`;
      },
    };
  },
};

type ReadInput = { path: string; startLine?: number; lineCount?: number };

function withPorts(session: SandboxSession): SandboxPortSession {
  if (!isSandboxPortSession(session)) {
    throw new SandboxToolPolicyError(
      "this session has no ports; leave list_ports and wait_for_port out",
    );
  }
  return session;
}

function withProcesses(session: SandboxSession): SandboxProcessSession {
  if (!isSandboxProcessSession(session)) {
    throw new SandboxToolPolicyError("this session has no processes; leave their tools out");
  }
  return session;
}

function formatResult(result: SandboxExecResult): string {
  const facts = [`exit_code: ${result.exitCode}`];
  if (result.timedOut) {
    facts.push("timed_out: true");
  }
  if (result.aborted) {
    facts.push("aborted: true");
  }
  return formatStreams(facts, result);
}

function formatStreams(
  facts: readonly string[],
  output: Pick<SandboxExecResult, "stdout" | "stderr" | "stdoutTruncated" | "stderrTruncated">,
): string {
  const blocks = [...facts];
  for (const stream of ["stdout", "stderr"] as const) {
    if (output[stream] !== "") {
      blocks.push(`${stream}:\n${output[stream]}`);
    }
  }
  if (output.stdoutTruncated || output.stderrTruncated) {
    blocks.push("output_truncated: true");
  }
  return blocks.join("\n\n") || "(nothing printed)";
}

function formatPage(page: SandboxTextFileReadResult): string {
  if (page.nextStartLine === null) {
    return page.content;
  }
  const { startLine, endLine, nextStartLine, truncatedBy } = page;
  return `${page.content}\n[lines ${startLine} to ${endLine}, cut by ${truncatedBy}; go on with startLine ${nextStartLine}]`;
}

function formatProcess(process: SandboxProcessInfo): string {
  const lines = [
    `process_id: ${process.id}`,
    `status: ${process.status}`,
    `command: ${[process.command, ...process.args].join(" ")}`,
  ];
  if (process.exitCode !== undefined) {
    lines.push(`exit_code: ${process.exitCode}`);
  }
  return lines.join("\n");
}

function formatPort(port: { containerPort: number; host: string; hostPort: number }): string {
  return `${port.containerPort}/tcp -> ${port.host}:${port.hostPort}`;
}
