/** Sandboxes of an Atoll server, from TypeScript. */

export type { Data } from "./bytes.ts";
export {
  type Bundle,
  Cell,
  type CellError,
  type CellStatus,
  type RunCodeOptions,
  type StreamCodeOptions,
} from "./cell.ts";
export { Cells } from "./cells.ts";
export { type Abortable, Client, type Connection } from "./client.ts";
export * from "./errors.ts";
export type { ExecutionEvent, OutputEvent, ValueEvent } from "./events.ts";
export type { ExecutionInfo, OutputCallback, Tail } from "./execution.ts";
export {
  type Completions,
  Kernel,
  type KernelInfo,
  type KernelOptions,
  Kernels,
} from "./kernel.ts";
export { type PortInfo, Ports } from "./ports.ts";
export {
  type Command,
  type CommandOptions,
  CommandResult,
  Commands,
  Process,
  type ProcessInfo,
  type RunOptions,
  type StartOptions,
} from "./process.ts";
export type { PublishedPort } from "./publishing.ts";
export {
  type At,
  type ContainerOptions,
  type Installed,
  type Limits,
  type Network,
  Sandbox,
  type SandboxInfo,
  type SandboxOptions,
  type SandboxState,
  type Secret,
} from "./sandbox.ts";
export { Terminal, type TerminalOptions, Terminals } from "./terminal.ts";
export {
  type FileChange,
  type FileInfo,
  Files,
  type ReadOptions,
  type SearchResult,
  type TextPage,
  type TreeInfo,
  type WorkspaceInfo,
  Workspaces,
  type WriteOptions,
} from "./workspace.ts";
