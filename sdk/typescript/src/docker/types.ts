/** The options, results and events of sessions, in the words of programs that were written for containers. */

import type { Connection } from "../client.ts";
import type { Client } from "../index.ts";

export type SandboxWorkspaceOptions =
  | { mode?: "ephemeral" }
  | { mode: "persistent"; id: string; destroyOnSessionDestroy?: boolean };

export type SandboxLifecycleOptions = {
  /** How long a session lives at most. */
  ttlMs?: number;
  /** How long it may be unused; a background process does not count as use. */
  idleTimeoutMs?: number;
  autoDestroy?: boolean;
};

export type SandboxNetworkMode = boolean | "none" | "host" | (string & {});
export type DockerSandboxNetworkOptions = { mode: SandboxNetworkMode };

export type SandboxLimits = {
  /** How long a command may take that does not say: 30 s. */
  timeoutMs?: number;
  /** How much of each stream a result keeps: the first MiB. */
  maxOutputBytes?: number;
  /** The largest file that is read or written. */
  maxFileBytes?: number;
  memoryMb?: number;
  cpus?: number;
  pidsLimit?: number;
  /** How many processes may run in the background: 4. */
  maxProcesses?: number;
};

export type DockerSandboxSecurityOptions = {
  readonlyRootfs?: boolean;
  noNewPrivileges?: boolean;
  dropCapabilities?: string[];
};

export type DockerSandboxOptions = {
  /** Any image, if an engine is named; else `node:…`, `python:…` or `denoland/deno:…`, or the name of a template: node:22-bookworm. */
  image?: string;
  /** Of the server's, the one that makes real containers; without it sandboxes stand in for them. */
  engine?: "docker" | "podman";
  /** What runs the container; only with an engine. */
  runtime?: "runc" | "crun" | "runsc";
  pull?: "missing" | "always" | "never";
  workdir?: string;
  workspace?: SandboxWorkspaceOptions;
  lifecycle?: SandboxLifecycleOptions;
  network?: SandboxNetworkMode | DockerSandboxNetworkOptions;
  user?: string;
  dockerPath?: string;
  labels?: Record<string, string>;
  limits?: SandboxLimits;
  security?: DockerSandboxSecurityOptions;
  hooks?: SandboxHooks;
  /** Where the server is; else ATOLL_URL and ATOLL_TOKEN say it. */
  server?: Connection | Client;
};

export type SandboxManifest = {
  files?: Record<string, string | Uint8Array>;
  directories?: string[];
  env?: Record<string, string>;
};

export type SandboxCreateSessionOptions = {
  /** In small letters; what a name cannot hold is replaced. */
  id?: string;
  workspace?: SandboxWorkspaceOptions;
  metadata?: Record<string, string>;
  /** What is there before any command runs. */
  manifest?: SandboxManifest;
};

export type DockerSandboxCreateSessionOptions = SandboxCreateSessionOptions & {
  /** Ports that this machine's loopback is to lead to. */
  ports?: readonly number[];
};

export type SandboxExecOptions = {
  /** A program; no shell reads it. */
  command: string;
  args?: readonly string[];
  /** Relative to the workspace. */
  cwd?: string;
  env?: Record<string, string>;
  timeoutMs?: number;
  input?: string | Uint8Array;
  signal?: AbortSignal;
  onStdout?: (chunk: Uint8Array) => unknown;
  onStderr?: (chunk: Uint8Array) => unknown;
};

export type SandboxExecResult = {
  stdout: string;
  stderr: string;
  /** 124 for a timeout, 128 + n for signal n. */
  exitCode: number;
  durationMs: number;
  timedOut: boolean;
  aborted: boolean;
  stdoutTruncated: boolean;
  stderrTruncated: boolean;
};

export type SandboxExecStreamEvent =
  | { type: "stdout"; chunk: Uint8Array; text: string }
  | { type: "stderr"; chunk: Uint8Array; text: string }
  | { type: "exit"; result: SandboxExecResult };

export type SandboxFileType = "file" | "directory" | "symlink" | "other";
export type SandboxFileEntry = { path: string; type: SandboxFileType; size?: number };

export type SandboxTextFileReadOptions = {
  /** The first line: 1. */
  startLine?: number;
  /** How many lines at most: 500. */
  lineCount?: number;
  /** How many bytes at most: 64 KiB. */
  maxBytes?: number;
};

export type SandboxTextFileReadResult = {
  content: string;
  startLine: number;
  endLine: number;
  /** Null at the end of the file. */
  nextStartLine: number | null;
  truncated: boolean;
  truncatedBy: "lines" | "bytes" | null;
};

export type SandboxPublishedPort = {
  containerPort: number;
  host: "127.0.0.1";
  hostPort: number;
  protocol: "tcp";
};

export type SandboxWaitForPortOptions = {
  timeoutMs?: number;
  intervalMs?: number;
  signal?: AbortSignal;
};

export type SandboxProcessStartOptions = {
  command: string;
  args?: readonly string[];
  cwd?: string;
  env?: Record<string, string>;
};

export type SandboxProcessStatus = "running" | "exited" | "stopped";

export type SandboxProcessInfo = {
  id: string;
  command: string;
  args: string[];
  cwd?: string;
  status: SandboxProcessStatus;
  exitCode?: number;
  startedAt: string;
  endedAt?: string;
};

export type SandboxProcessLogs = {
  stdout: string;
  stderr: string;
  stdoutTruncated: boolean;
  stderrTruncated: boolean;
};

export type SandboxProcessLogsOptions = { tailBytes?: number };
export type SandboxProcessStopOptions = { gracePeriodMs?: number };

export type SandboxSessionEvent = { sessionId: string; provider: string; workdir: string };
export type SandboxExecEvent = SandboxSessionEvent & {
  command: string;
  args: string[];
  cwd?: string;
};
export type SandboxExecEndEvent = SandboxExecEvent & { result: SandboxExecResult };
export type SandboxFileWriteEvent = SandboxSessionEvent & { path: string; size: number };

/** Told what happens; what they return is waited for. */
export type SandboxHooks = {
  onSessionCreate?: (event: SandboxSessionEvent) => unknown;
  onExecStart?: (event: SandboxExecEvent) => unknown;
  onExecEnd?: (event: SandboxExecEndEvent) => unknown;
  onFileWrite?: (event: SandboxFileWriteEvent) => unknown;
  onDestroy?: (event: SandboxSessionEvent) => unknown;
};

export interface SandboxSession {
  readonly id: string;
  readonly provider: string;
  readonly workdir: string;
  exec(options: SandboxExecOptions): Promise<SandboxExecResult>;
  execStream(options: SandboxExecOptions): AsyncIterable<SandboxExecStreamEvent>;
  readFile(path: string): Promise<Uint8Array>;
  readTextFile(path: string): Promise<string>;
  readTextFilePage?(
    path: string,
    options?: SandboxTextFileReadOptions,
  ): Promise<SandboxTextFileReadResult>;
  writeFile(path: string, data: string | Uint8Array): Promise<void>;
  writeTextFile(path: string, content: string): Promise<void>;
  listFiles(path?: string): Promise<SandboxFileEntry[]>;
  destroy(): Promise<void>;
}

export interface SandboxPortSession extends SandboxSession {
  readonly publishedPorts: readonly SandboxPublishedPort[];
  waitForPort(
    containerPort: number,
    options?: SandboxWaitForPortOptions,
  ): Promise<SandboxPublishedPort>;
}

export interface SandboxProcessSession extends SandboxSession {
  startProcess(options: SandboxProcessStartOptions): Promise<SandboxProcessInfo>;
  listProcesses(): Promise<SandboxProcessInfo[]>;
  readProcessLogs(
    processId: string,
    options?: SandboxProcessLogsOptions,
  ): Promise<SandboxProcessLogs>;
  stopProcess(processId: string, options?: SandboxProcessStopOptions): Promise<SandboxProcessInfo>;
}

/** Whether a session has ports. */
export function isSandboxPortSession(session: SandboxSession): session is SandboxPortSession {
  return "waitForPort" in session;
}

/** Whether a session has processes. */
export function isSandboxProcessSession(session: SandboxSession): session is SandboxProcessSession {
  return "startProcess" in session;
}
