/** Ports that programs in a sandbox listen on. */

import type { Abortable, Client } from "./client.ts";
import { TimedOut } from "./errors.ts";
import type { components } from "./generated/api.ts";
import { type PublishedPort, publish } from "./publishing.ts";

/** A port that something in the sandbox listens on. */
export type PortInfo = components["schemas"]["PortAnswer"];

const WAIT_MS = 30_000;

/** The ports of a sandbox. */
export class Ports {
  readonly #client: Client;
  readonly #sandbox: string;

  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** List what something listens on. */
  list(options: Abortable = {}): Promise<PortInfo[]> {
    const path = { sandbox: this.#sandbox };
    return this.#client.call("get", "/sandboxes/{sandbox}/ports", { path, ...options });
  }

  /**
   * Have programs of this machine reach a port inside, on the loopback, until that is closed: at `hostPort`, or at any that is free.
   * Throws `Unavailable` if that is taken, and `Unsupported` where there is no WebSocket.
   */
  publish(port: number, options: { hostPort?: number } = {}): Promise<PublishedPort> {
    return publish(this.#client, this.#sandbox, port, options.hostPort ?? 0);
  }

  /** Wait until something listens on a port; throws `TimedOut` if nothing does within `timeoutMs`, 30 s if nothing is said. */
  async wait(port: number, options: Abortable & { timeoutMs?: number } = {}): Promise<void> {
    const timeoutMs = options.timeoutMs ?? WAIT_MS;
    const found = await this.#client.call("get", "/sandboxes/{sandbox}/ports/{port}/wait", {
      path: { sandbox: this.#sandbox, port },
      query: { timeout: timeoutMs / 1000 },
      signal: options.signal,
    });
    if (!found.is_listening) {
      throw new TimedOut(`nothing listens on port ${port} after ${timeoutMs} ms`, {
        details: { port },
        retryable: true,
      });
    }
  }
}
