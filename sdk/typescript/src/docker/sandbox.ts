/** Sandboxes for programs that were written for containers: the same names, on an Atoll server. */

import { Client } from "../client.ts";
import { AtollError, InvalidRequest } from "../errors.ts";
import type { PublishedPort } from "../publishing.ts";
import { Sandbox, type SandboxOptions } from "../sandbox.ts";
import { SandboxPortError, withTheirErrors } from "./errors.ts";
import { checkPorts, DEFAULT_IMAGES, makeSandboxOptions } from "./options.ts";
import { DockerSandboxSession } from "./session.ts";
import type { DockerSandboxCreateSessionOptions, DockerSandboxOptions } from "./types.ts";

/** Makes sessions of one kind. */
export class DockerSandbox {
  readonly provider = "docker";
  readonly #options: DockerSandboxOptions;

  constructor(options: DockerSandboxOptions = {}) {
    this.#options = options;
  }

  /** Sessions with Node. */
  static node(options: DockerSandboxOptions = {}): DockerSandbox {
    return new DockerSandbox({ image: DEFAULT_IMAGES.node, ...options });
  }

  /** Sessions with Python. */
  static python(options: DockerSandboxOptions = {}): DockerSandbox {
    return new DockerSandbox({ image: DEFAULT_IMAGES.python, ...options });
  }

  /** Sessions with Deno; a server without such a template installs it when it is first asked for. */
  static deno(options: DockerSandboxOptions = {}): DockerSandbox {
    return new DockerSandbox({ image: DEFAULT_IMAGES.deno, ...options });
  }

  /** Make a session; throws `SandboxDockerCommandError` for what this server cannot honour. */
  async createSession(
    options: DockerSandboxCreateSessionOptions = {},
  ): Promise<DockerSandboxSession> {
    const { server } = this.#options;
    const wanted = makeSandboxOptions(this.#options, options);
    const ports = checkPorts(options.ports ?? []);
    const client = server instanceof Client ? server : new Client(server);
    const sandbox = await withTheirErrors(create({ ...wanted, client }, this.#options.pull));
    const published: PublishedPort[] = [];
    try {
      for (const port of ports) {
        published.push(await publish(sandbox, port));
      }
      const session = new DockerSandboxSession(sandbox, wanted, this.#options, published);
      await session.announce();
      return session;
    } catch (error) {
      await Promise.all([...published.map((port) => port.close()), sandbox.destroy()]);
      throw error;
    }
  }
}

async function publish(sandbox: Sandbox, port: number): Promise<PublishedPort> {
  try {
    return await sandbox.ports.publish(port);
  } catch (error) {
    throw error instanceof AtollError ? new SandboxPortError(error.message, error) : error;
  }
}

// What stands in for a template that a server has not of its own.
const PULLED: Readonly<Record<string, readonly string[]>> = { deno: ["deno"] };

/** Make a sandbox; what its template would hold is installed if there is no such template, unless nothing is to be pulled. */
async function create(
  wanted: SandboxOptions & { client: Client },
  pull: DockerSandboxOptions["pull"],
): Promise<Sandbox> {
  const { template = "" } = wanted;
  try {
    return await Sandbox.create(wanted);
  } catch (error) {
    const isMissing = error instanceof InvalidRequest && error.details.template === template;
    const packages = PULLED[template];
    if (!isMissing || packages === undefined || pull === "never") {
      throw error;
    }
    return Sandbox.create({ ...wanted, template: undefined, packages });
  }
}
