/** Ports of a sandbox on this machine's loopback: each connection goes through a WebSocket of its own. */

import type { Server, Socket } from "node:net";

import { fillIn } from "../client.ts";
import type { Sandbox } from "../sandbox.ts";
import { SandboxPortError } from "./errors.ts";
import type { SandboxPublishedPort } from "./types.ts";

const HOST = "127.0.0.1";

/** A port that is published, until it is closed. */
export interface PublishedPort {
  info: SandboxPublishedPort;
  close(): Promise<void>;
}

/** Publish ports; throws `SandboxPortError` where this platform cannot. */
export async function publishPorts(
  sandbox: Sandbox,
  ports: readonly number[],
): Promise<readonly PublishedPort[]> {
  const published: PublishedPort[] = [];
  try {
    for (const port of ports) {
      published.push(await publish(sandbox, port));
    }
    return published;
  } catch (error) {
    await Promise.all(published.map((each) => each.close()));
    throw error;
  }
}

async function publish(sandbox: Sandbox, port: number): Promise<PublishedPort> {
  if (globalThis.WebSocket === undefined) {
    throw new SandboxPortError(
      "ports need a WebSocket, which this platform lacks; use Node 22, Deno or Bun",
    );
  }
  const { createServer } = await import("node:net");
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
    join(socket, sandbox, port);
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(0, HOST, resolve);
  });
  // Nobody's program goes on only because a port is published.
  server.unref();
  return {
    info: { containerPort: port, host: HOST, hostPort: portOf(server), protocol: "tcp" },
    close: () => close(server, sockets),
  };
}

function join(socket: Socket, sandbox: Sandbox, port: number): void {
  const path = fillIn("/sandboxes/{sandbox}/ports/{port}", { sandbox: sandbox.id, port });
  const line = sandbox.client.openSocket(path);
  if (line === null) {
    socket.destroy();
    return;
  }
  line.binaryType = "arraybuffer";
  // What comes before the way is open waits in the socket.
  socket.pause();
  socket.on("error", () => line.close()); // it went away
  socket.on("data", (data: Uint8Array) => line.send(data as Uint8Array<ArrayBuffer>));
  socket.on("close", () => line.close());
  line.addEventListener("open", () => socket.resume());
  line.addEventListener("message", ({ data }) => socket.write(new Uint8Array(data)));
  line.addEventListener("close", () => socket.end());
  line.addEventListener("error", () => socket.destroy());
}

function portOf(server: Server): number {
  const address = server.address();
  return typeof address === "object" && address !== null ? address.port : 0;
}

async function close(server: Server, sockets: ReadonlySet<Socket>): Promise<void> {
  for (const socket of sockets) {
    socket.destroy();
  }
  await new Promise<void>((resolve) => {
    server.close(() => resolve());
  });
}
