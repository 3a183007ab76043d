/** The isolated place that a caller owns. */

import { type Data, toBase64, toBytes } from "./bytes.ts";
import {
  type Cell,
  type RunCodeOptions,
  runCode,
  type StreamCodeOptions,
  streamCode,
} from "./cell.ts";
import { Cells } from "./cells.ts";
import { type Abortable, Client, type Connection, newKey, readBody } from "./client.ts";
import { InvalidRequest, NotFound } from "./errors.ts";
import type { ExecutionEvent } from "./events.ts";
import type { components } from "./generated/api.ts";
import { Kernels } from "./kernel.ts";
import { Ports } from "./ports.ts";
import { Commands } from "./process.ts";
import { Terminals } from "./terminal.ts";
import { unlessAborted } from "./waiting.ts";
import { Files } from "./workspace.ts";

type SandboxBody = components["schemas"]["SandboxBody"];
type ContainerBody = components["schemas"]["ContainerBody"];
/** Facts about a sandbox at one moment, living or not. */
export type SandboxInfo = components["schemas"]["SandboxAnswer"];
/** Where a sandbox is in its life. */
export type SandboxState = components["schemas"]["SandboxState"];
/** What a sandbox may reach: `"none"`, `"open"`, rules such as `["api.example"]`, or all of it written out. */
export type Network = NonNullable<SandboxBody["network"]>;
/** What a sandbox uses and never sees: the name of a stored secret, or one that only this sandbox has. */
export type Secret = NonNullable<SandboxBody["secrets"]>[string];
/** What was installed. */
export type Installed = components["schemas"]["InstalledAnswer"];

/** The most that a sandbox may use; what is left out is as the server says. */
export interface Limits {
  memoryBytes?: number;
  cpus?: number;
  processes?: number;
  workspaceBytes?: number;
  tmpBytes?: number;
  homeBytes?: number;
  shmBytes?: number;
  inodes?: number;
  openFiles?: number;
  fileBytes?: number;
  /** `best_effort` accepts that this machine cannot enforce a limit. */
  enforcement?: "strict" | "best_effort";
}

/** The container that a sandbox of engine `docker` or `podman` is; what is left out is as hard as it can be. */
export interface ContainerOptions {
  /** Else that of the template. */
  image?: string;
  /** When the image is fetched: if it is `missing`. */
  pull?: "missing" | "always" | "never";
  /** What runs it; else as the operator says. */
  runtime?: "runc" | "crun" | "runsc";
  /** Numbers: a user, or `user:group`. */
  user?: string;
  /** `none`, or a network of the engine's that the operator allows. */
  network?: string;
  /** One that exists, as the workspace; it stays. */
  volume?: string;
  labels?: Readonly<Record<string, string>>;
  capAdd?: readonly string[];
  capDrop?: readonly string[];
  /** The name of a profile of the operator's. */
  seccomp?: string;
  readOnlyRoot?: boolean;
  /** The most that is written to a root that can be. */
  rootBytes?: number;
  cpuShares?: number;
}

/** The sandbox that is wanted. */
export interface SandboxOptions {
  /** What it is made from: `python` if nothing is said. */
  template?: string;
  /** The container image that it is made from instead, for engines `docker` and `podman`. */
  image?: string;
  /** Everything else about its container; likewise. */
  container?: ContainerOptions;
  /** Unique among those of its owner. */
  name?: string;
  limits?: Limits;
  /** Variables of everything that runs in it. */
  env?: Readonly<Record<string, string>>;
  /** What its workspace holds from the beginning. */
  files?: Readonly<Record<string, Data>>;
  directories?: readonly string[];
  /** Anything that is to be remembered with it. */
  metadata?: Readonly<Record<string, string>>;
  /** What it can be found by. */
  labels?: Readonly<Record<string, string>>;
  /** How long it lives at most. */
  lifetimeMs?: number;
  /** How long it may be unused. */
  idleMs?: number;
  /** The id of a workspace that outlives it, made if there is none. */
  workspace?: string;
  /** Whether that workspace goes with it after all. */
  removeWorkspace?: boolean;
  /** Whether it can be stopped and go on later; its files are then on disk. */
  persistent?: boolean;
  network?: Network;
  /** By the variables that hold a placeholder inside. */
  secrets?: Readonly<Record<string, Secret>>;
  /** Packages that are installed besides: of Python, or with template "node" of npm. */
  packages?: readonly string[] | Readonly<Record<string, string>>;
  /** How it is isolated; a server that has another engine refuses. */
  engine?: string;
}

/** Where sandboxes are: a server, or a client that is connected to one. */
export interface At extends Connection, Abortable {
  client?: Client;
}

const BASE_TEMPLATE = "base";
const NEXT_CURSOR = "atoll-next-cursor";

/** A sealed sandbox with a live session inside. */
export class Sandbox implements AsyncDisposable {
  readonly id: string;
  /** The server that has it. */
  readonly client: Client;
  readonly commands: Commands;
  readonly files: Files;
  readonly kernels: Kernels;
  readonly ports: Ports;
  readonly terminals: Terminals;

  constructor(client: Client, id: string) {
    this.client = client;
    this.id = id;
    this.commands = new Commands(client, id);
    this.files = new Files(client, id);
    this.kernels = new Kernels(client, id);
    this.ports = new Ports(client, id);
    this.terminals = new Terminals(client, id);
  }

  /** Make a sandbox. Aborted, none is left. */
  static async create(options: SandboxOptions & At = {}): Promise<Sandbox> {
    const { signal } = options;
    signal?.throwIfAborted();
    const client = clientOf(options);
    const making = client.call("post", "/sandboxes", { body: makeBody(options), key: newKey() });
    try {
      return new Sandbox(client, (await unlessAborted(making, signal)).id);
    } catch (error) {
      if (signal?.aborted) {
        making.then(({ id }) => new Sandbox(client, id).destroy()).catch(() => {}); // none was made
      }
      throw error;
    }
  }

  /** Return a handle on a living sandbox, by its id or its name; throws `NotFound`. */
  static async connect(idOrName: string, at: At = {}): Promise<Sandbox> {
    const client = clientOf(at);
    const path = { sandbox: idOrName };
    const info = await client.call("get", "/sandboxes/{sandbox}", { path, signal: at.signal });
    if (info.deleted_at !== null) {
      throw new NotFound(`sandbox ${info.id} is no more: ${info.reason}`, {
        details: { sandbox: info.id, reason: info.reason },
      });
    }
    return new Sandbox(client, info.id);
  }

  /** Yield facts about the caller's sandboxes, the newest first; the living ones, unless states are named. */
  static async *list(
    options: At & {
      states?: readonly SandboxState[];
      labels?: Readonly<Record<string, string>>;
    } = {},
  ): AsyncGenerator<SandboxInfo, void, undefined> {
    const { signal, states = ["creating", "running", "paused", "stopped"], labels = {} } = options;
    const client = clientOf(options);
    const label = Object.entries(labels).map(([name, value]) => `${name}=${value}`);
    let cursor: string | undefined;
    do {
      const query = { state: [...states], label, cursor };
      const answer = await client.send("get", "/sandboxes", { query, signal });
      yield* (await readBody(() => answer.json(), signal)) as SandboxInfo[];
      cursor = answer.headers.get(NEXT_CURSOR) ?? undefined;
    } while (cursor !== undefined);
  }

  /** Run code in the sandbox's live session, to its end. */
  runCode(code: string, options: RunCodeOptions = {}): Promise<Cell> {
    return runCode(this.client, this.id, code, options);
  }

  /** Run code and yield what comes of it; the last event is its end. Leaving early interrupts it. */
  streamCode(
    code: string,
    options: StreamCodeOptions = {},
  ): AsyncGenerator<ExecutionEvent, void, undefined> {
    return streamCode(this.client, this.id, code, options);
  }

  /** Return a connection for many cells, one after another: the quickest way. */
  openCells(): Cells {
    return new Cells(this.client, this.id);
  }

  /** Return facts about it. */
  info(options: Abortable = {}): Promise<SandboxInfo> {
    return this.client.call("get", "/sandboxes/{sandbox}", { path: this.#path, ...options });
  }

  /** Change its name or its labels. */
  update(
    change: { name?: string; labels?: Readonly<Record<string, string>> },
    options: Abortable = {},
  ): Promise<SandboxInfo> {
    const body = { ...change };
    return this.client.call("patch", "/sandboxes/{sandbox}", {
      path: this.#path,
      body,
      isSafe: true,
      ...options,
    });
  }

  /** Stop everything in it in place. */
  async pause(options: Abortable = {}): Promise<void> {
    await this.client.call("put", "/sandboxes/{sandbox}/pause", { path: this.#path, ...options });
  }

  /** Let it go on: everything in it after a pause; with its files after it was stopped. */
  async resume(options: Abortable = {}): Promise<void> {
    const { status } = await this.info(options);
    const rest = status === "stopped" ? "/sandboxes/{sandbox}/stop" : "/sandboxes/{sandbox}/pause";
    await this.client.call("delete", rest, { path: this.#path, ...options });
  }

  /** End everything that runs in it and keep its files; it has to be persistent. Sessions begin anew afterwards. */
  async stop(options: Abortable = {}): Promise<void> {
    await this.client.call("put", "/sandboxes/{sandbox}/stop", { path: this.#path, ...options });
  }

  /** Install packages of a language; needs a network that reaches its package index. */
  install(
    packages: readonly string[],
    options: Abortable & { language?: string; timeoutMs?: number } = {},
  ): Promise<Installed> {
    const { signal, language = "python", timeoutMs } = options;
    return this.client.call("post", "/sandboxes/{sandbox}/install", {
      path: this.#path,
      body: {
        packages: [...packages],
        language,
        ...(timeoutMs === undefined ? {} : { timeout: timeoutMs / 1000 }),
      },
      signal,
    });
  }

  /** Put other rules about what it may reach in force; what they forbid is cut off when this returns. */
  async setNetwork(network: Network, options: Abortable = {}): Promise<void> {
    await this.client.call("put", "/sandboxes/{sandbox}/network", {
      path: this.#path,
      body: { network },
      ...options,
    });
  }

  /** Destroy it; one that is no more is fine. */
  async destroy(options: Abortable = {}): Promise<void> {
    try {
      await this.client.call("delete", "/sandboxes/{sandbox}", { path: this.#path, ...options });
    } catch (error) {
      if (!(error instanceof NotFound)) {
        throw error;
      }
    }
  }

  /** Destroy it. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.destroy();
  }

  get #path(): { sandbox: string } {
    return { sandbox: this.id };
  }
}

/** Return the client that is given, else a new one. */
export function clientOf(at: At): Client {
  return at.client ?? new Client(at);
}

function makeBody(options: SandboxOptions): SandboxBody {
  const { lifetimeMs, idleMs, removeWorkspace, limits } = options;
  const container = makeContainer(options.image, options.container);
  const entries = Object.entries(options.files ?? {});
  return dropUndefined({
    template: options.template,
    name: options.name,
    engine: options.engine,
    container,
    // Whether an image of somebody's has an interpreter is seen when a cell asks for it.
    kernel: options.template !== BASE_TEMPLATE && container?.image === undefined,
    limits: limits === undefined ? undefined : makeLimits(limits),
    env: options.env,
    files: Object.fromEntries(
      entries.map(([path, data]) => [path, { base64: toBase64(toBytes(data)) }]),
    ),
    directories: options.directories as string[] | undefined,
    metadata: options.metadata,
    labels: options.labels,
    lifetime: lifetimeMs === undefined ? undefined : lifetimeMs / 1000,
    idle: idleMs === undefined ? undefined : idleMs / 1000,
    workspace: options.workspace,
    remove_workspace: removeWorkspace,
    persistent: options.persistent,
    network: options.network,
    secrets: options.secrets,
    packages: options.packages as string[] | Record<string, string> | undefined,
  });
}

function makeContainer(
  image: string | undefined,
  container: ContainerOptions | undefined,
): ContainerBody | undefined {
  if (image === undefined && container === undefined) {
    return undefined;
  }
  const { labels, capAdd, capDrop, readOnlyRoot, rootBytes, cpuShares, ...same } = container ?? {};
  if (image !== undefined && same.image !== undefined && same.image !== image) {
    throw new InvalidRequest(
      `image is ${image}, and that of container is ${same.image}; name one of them`,
    );
  }
  return dropUndefined({
    ...same,
    image: image ?? same.image,
    labels,
    cap_add: capAdd as string[] | undefined,
    cap_drop: capDrop as string[] | undefined,
    read_only_root: readOnlyRoot,
    root_bytes: rootBytes,
    cpu_shares: cpuShares,
  });
}

function makeLimits(limits: Limits): components["schemas"]["LimitsBody"] {
  return dropUndefined({
    memory: limits.memoryBytes,
    cpus: limits.cpus,
    processes: limits.processes,
    workspace_bytes: limits.workspaceBytes,
    tmp_bytes: limits.tmpBytes,
    home_bytes: limits.homeBytes,
    shm_bytes: limits.shmBytes,
    inodes: limits.inodes,
    open_files: limits.openFiles,
    file_bytes: limits.fileBytes,
    enforcement: limits.enforcement,
  });
}

function dropUndefined<T extends object>(fields: T): T {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as T;
}
