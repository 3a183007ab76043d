/** Ports of a sandbox on this machine's loopback: each connection goes through a WebSocket of its own. */

import type { Server, Socket } from "node:net";

import { type Client, fillIn } from "./client.ts";
import { Unavailable, Unsupported } from "./errors.ts";

const HOST = "127.0.0.1";

/** A port of a sandbox that programs of this machine reach, until it is closed. */
export interface PublishedPort {
  readonly port: number;
  readonly host: "127.0.0.1";
  readonly hostPort: number;
  /** Where it is for a browser. */
  readonly url: string;
  /** Take no more connections, and cut off those that there are. */
  close(): Promise<void>;
}

/** Publish a port; throws `Unsupported` where this platform cannot, and `Unavailable` if `hostPort` is taken. */
export async function publish(
  client: Client,
  sandbox: string,
  port: number,
  hostPort: number,
): Promise<PublishedPort> {
  if (globalThis.WebSocket === undefined) {
    throw new Unsupported(
      "ports need a WebSocket, which this platform lacks; use Node 22, Deno or Bun",
    );
  }
  const { createServer } = await import("node:net");
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
    join(socket, client, sandbox, port);
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", (error) => reject(refusal(hostPort, error)));
    server.listen(hostPort, HOST, resolve);
  });
  // Nobody's program goes on only because a port is published.
  server.unref();
  const found = portOf(server);
  return {
    port,
    host: HOST,
    hostPort: found,
    url: `http://${HOST}:${found}`,
    close: () => close(server, sockets),
  };
}

function refusal(hostPort: number, error: Error): Unavailable {
  return new Unavailable(
    `port ${hostPort} of this machine cannot be listened on: ${error.message}; leave hostPort out to get any`,
    { details: { host_port: hostPort } },
  );
}

function join(socket: Socket, client: Client, sandbox: string, port: number): void {
  const line = client.openSocket(fillIn("/sandboxes/{sandbox}/ports/{port}", { sandbox, port }));
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
