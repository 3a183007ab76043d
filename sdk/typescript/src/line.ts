/** A WebSocket as something to read from: messages one by one, until it ends. */

import type { Abortable } from "./client.ts";
import { unlessAborted } from "./waiting.ts";

/** A WebSocket whose messages are waited for one by one. */
export class Line {
  readonly #socket: WebSocket;
  readonly #waiting: string[] = [];
  #isOver = false;
  #wake = () => {};

  private constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.addEventListener("message", ({ data }) => {
      this.#waiting.push(String(data));
      this.#wake();
    });
    for (const end of ["close", "error"]) {
      socket.addEventListener(end, () => {
        this.#isOver = true;
        this.#wake();
      });
    }
  }

  /** Return it once it is open, or null if it never is. */
  static async open(socket: WebSocket, { signal }: Abortable): Promise<Line | null> {
    const line = new Line(socket);
    const opened = new Promise<Line | null>((resolve) => {
      socket.addEventListener("open", () => resolve(line));
      socket.addEventListener("close", () => resolve(null));
      socket.addEventListener("error", () => resolve(null));
    });
    try {
      return await unlessAborted(opened, signal);
    } catch (error) {
      socket.close();
      throw error;
    }
  }

  /** Yield messages until the connection ends; whoever leaves earlier can go on later. */
  async *messages({ signal }: Abortable): AsyncGenerator<string, void, undefined> {
    for (;;) {
      const message = this.#waiting.shift();
      if (message !== undefined) {
        yield message;
      } else if (this.#isOver) {
        return;
      } else {
        const woken = new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        await unlessAborted(woken, signal);
      }
    }
  }

  /** Send a message; returns false if the connection has ended. */
  send(message: string | Uint8Array): boolean {
    if (this.#isOver || this.#socket.readyState !== this.#socket.OPEN) {
      return false;
    }
    this.#socket.send(message as string | Uint8Array<ArrayBuffer>);
    return true;
  }

  /** End the connection. */
  close(): void {
    this.#socket.close();
  }
}
