/** What is asked of a session, as Atoll takes it; what this server cannot honour is refused, never left out. */

import type { ContainerOptions, Limits, Network, SandboxOptions } from "../sandbox.ts";
import { SandboxDockerCommandError, SandboxPortError } from "./errors.ts";
import { checkPath } from "./paths.ts";
import type {
  DockerSandboxCreateSessionOptions,
  DockerSandboxOptions,
  SandboxLimits,
  SandboxWorkspaceOptions,
} from "./types.ts";

export const DEFAULT_IMAGES = {
  node: "node:22-bookworm",
  python: "python:3.13-bookworm",
  deno: "denoland/deno:debian",
} as const;
export const WORKDIR = "/workspace";

const KNOWN: ReadonlySet<string> = new Set([
  "image",
  "engine",
  "runtime",
  "pull",
  "workdir",
  "workspace",
  "lifecycle",
  "network",
  "user",
  "dockerPath",
  "labels",
  "limits",
  "security",
  "hooks",
  "server",
]);
const KNOWN_SECURITY: ReadonlySet<string> = new Set([
  "readonlyRootfs",
  "noNewPrivileges",
  "dropCapabilities",
]);
// Images whose programs a template has, whatever their tag.
const TEMPLATES: Readonly<Record<string, string>> = {
  node: "node",
  python: "python",
  "denoland/deno": "deno",
};
const MIB = 1 << 20;
const MOST_NAME = 40;
const MOST_PORT = 65_535;

/** Return the sandbox that is wanted; throws `SandboxDockerCommandError` for what this server cannot honour. */
export function makeSandboxOptions(
  options: DockerSandboxOptions,
  session: DockerSandboxCreateSessionOptions,
): SandboxOptions {
  checkHonoured(options);
  const { manifest = {}, id, metadata } = session;
  const files = Object.entries(manifest.files ?? {});
  const { ttlMs, idleTimeoutMs } = options.lifecycle ?? {};
  return {
    ...makeSource(options),
    name: id === undefined ? undefined : makeName(id),
    env: manifest.env,
    files: Object.fromEntries(files.map(([path, data]) => [checkPath(path), data])),
    directories: (manifest.directories ?? []).map(checkPath),
    metadata,
    labels: options.labels,
    lifetimeMs: ttlMs,
    idleMs: idleTimeoutMs,
    limits: makeLimits(options.limits ?? {}),
    ...makeWorkspace(session.workspace ?? options.workspace ?? {}),
  };
}

/** Return the ports that are to be published; throws `SandboxPortError` for what is none. */
export function checkPorts(ports: readonly number[]): readonly number[] {
  for (const port of ports) {
    if (!Number.isInteger(port) || port < 1 || port > MOST_PORT) {
      throw new SandboxPortError(`port ${port} does not lie between 1 and ${MOST_PORT}`);
    }
  }
  if (new Set(ports).size < ports.length) {
    throw new SandboxPortError(`ports ${ports.join(", ")} are not all different`);
  }
  return ports;
}

function checkHonoured(options: DockerSandboxOptions): void {
  for (const name of Object.keys(options)) {
    if (!KNOWN.has(name)) {
      refuse(`option ${name} is unknown; there is: ${[...KNOWN].join(", ")}`);
    }
  }
  if (options.engine === undefined) {
    checkWithoutEngine(options);
  }
  if (options.workdir !== undefined && options.workdir !== WORKDIR) {
    refuse(`workdir ${options.workdir} cannot be honoured: a workspace is always ${WORKDIR}`);
  }
  if (options.dockerPath !== undefined) {
    refuse(
      "dockerPath cannot be honoured: no program is run here; leave it out, and name a server",
    );
  }
  if (options.lifecycle?.autoDestroy === false) {
    refuse(
      "autoDestroy: false cannot be honoured: the server ends every sandbox in time; raise ttlMs",
    );
  }
  checkSecurity(options.security ?? {});
}

function checkWithoutEngine(options: DockerSandboxOptions): void {
  if (options.runtime !== undefined) {
    refuse(
      `runtime ${options.runtime} cannot be honoured: no container is made; name engine "docker" or "podman", too`,
    );
  }
  if (options.pull === "always") {
    refuse('pull "always" cannot be honoured: templates are made by the server; use "missing"');
  }
  if (options.user !== undefined) {
    refuse(
      `user ${options.user} cannot be honoured: each sandbox has a user of its own; leave it out`,
    );
  }
}

function checkSecurity(security: NonNullable<DockerSandboxOptions["security"]>): void {
  for (const name of Object.keys(security)) {
    if (!KNOWN_SECURITY.has(name)) {
      refuse(
        `security option ${name} cannot be honoured; there is: ${[...KNOWN_SECURITY].join(", ")}`,
      );
    }
  }
  if (security.noNewPrivileges === false) {
    refuse("noNewPrivileges: false cannot be honoured: nothing in a sandbox gains privileges");
  }
  const drop = security.dropCapabilities?.map((name) => name.toUpperCase());
  if (drop !== undefined && !drop.includes("ALL")) {
    refuse('dropCapabilities without "ALL" cannot be honoured: a sandbox never has capabilities');
  }
}

/** Return what a session is made of: a container of the server's engine, or a template that stands in for its image. */
function makeSource(options: DockerSandboxOptions): SandboxOptions {
  const { engine, image = DEFAULT_IMAGES.node } = options;
  if (engine === undefined) {
    return { template: findTemplate(image), network: findNetwork(options.network) };
  }
  const container: ContainerOptions = {
    image,
    pull: options.pull,
    runtime: options.runtime,
    user: options.user,
    network: findContainerNetwork(options.network),
    labels: options.labels,
    readOnlyRoot: options.security?.readonlyRootfs,
  };
  return { engine, container };
}

function findTemplate(image: string): string {
  const name = image.split(/[:@]/)[0] ?? "";
  const template = TEMPLATES[name];
  if (template !== undefined) {
    return template;
  }
  // Names of templates are no names of images of anybody's.
  if (/^[a-z0-9][a-z0-9._-]*$/.test(image)) {
    return image;
  }
  return refuse(
    `image ${JSON.stringify(image)} cannot be honoured: this server has templates only; use node:…, python:… or denoland/deno:…, or the name of a template`,
  );
}

function findNetwork(network: DockerSandboxOptions["network"]): Network {
  const mode = typeof network === "object" ? network.mode : network;
  switch (mode) {
    case undefined:
    case false:
    case "none":
      return "none";
    case true:
    case "bridge":
      return "open";
    case "host":
      return refuse(
        'network "host" cannot be honoured: a sandbox has a network of its own; use true',
      );
    default:
      return refuse(
        `network ${JSON.stringify(mode)} cannot be honoured: there are none with names; use true`,
      );
  }
}

function findContainerNetwork(network: DockerSandboxOptions["network"]): string {
  const mode = typeof network === "object" ? network.mode : network;
  if (mode === undefined || typeof mode === "boolean") {
    return mode === true ? "bridge" : "none";
  }
  return mode;
}

function makeLimits(limits: SandboxLimits): Limits {
  return {
    memoryBytes: limits.memoryMb === undefined ? undefined : limits.memoryMb * MIB,
    cpus: limits.cpus,
    processes: limits.pidsLimit,
  };
}

function makeWorkspace(
  workspace: SandboxWorkspaceOptions,
): Pick<SandboxOptions, "workspace" | "removeWorkspace"> {
  if (workspace.mode !== "persistent") {
    return {};
  }
  return { workspace: workspace.id, removeWorkspace: workspace.destroyOnSessionDestroy ?? false };
}

function makeName(id: string): string {
  const name = id
    .toLowerCase()
    .replaceAll(/[^a-z0-9-]+/g, "-")
    .replaceAll(/^-+|-+$/g, "");
  if (name === "") {
    return refuse(`session id ${JSON.stringify(id)} holds no letter and no digit`);
  }
  return name.slice(0, MOST_NAME);
}

function refuse(message: string): never {
  throw new SandboxDockerCommandError(message);
}
