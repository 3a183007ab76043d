/** Bytes, and the texts that they are. */

import { InvalidRequest } from "./errors.ts";

/** What is given to a program or a file: bytes as they are, or a text in UTF-8. */
export type Data = string | Uint8Array;

const encoder = new TextEncoder();
// A call with more arguments than this overflows the stack of some engines.
const CALL_BYTES = 0x8000;

/** Return what is to be sent as bytes. */
export function toBytes(data: Data): Uint8Array {
  if (typeof data !== "string") {
    return data;
  }
  if (/[\ud800-\udfff]/u.test(data)) {
    throw new InvalidRequest("this text holds half a character; pass bytes instead");
  }
  return encoder.encode(data);
}

/** Return bytes as text, with a mark in place of what is no UTF-8; a byte order mark stays. */
export function toText(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

/** Return bytes as text; throws `InvalidRequest` if they are none. */
export function toExactText(bytes: Uint8Array, what: string): string {
  try {
    return new TextDecoder("utf-8", { ignoreBOM: true, fatal: true }).decode(bytes);
  } catch (cause) {
    throw new InvalidRequest(`${what} is no text in UTF-8; read its bytes instead`, { cause });
  }
}

/** Return bytes in base64. */
export function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += CALL_BYTES) {
    binary += String.fromCharCode(...bytes.subarray(at, at + CALL_BYTES));
  }
  return btoa(binary);
}

/** Return the bytes that a base64 text stands for. */
export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Return all bytes one after another. */
export function joinBytes(chunks: readonly Uint8Array[]): Uint8Array {
  const joined = new Uint8Array(chunks.reduce((total, chunk) => total + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    joined.set(chunk, at);
    at += chunk.length;
  }
  return joined;
}

/** The first bytes of an output, up to a size. */
export class Head {
  readonly #most: number;
  readonly #chunks: Uint8Array[] = [];
  #kept = 0;
  #truncated = false;

  constructor(most: number) {
    this.#most = most;
  }

  /** Take what comes next. */
  take(chunk: Uint8Array): void {
    const room = this.#most - this.#kept;
    if (chunk.length > room) {
      this.#truncated = true;
    }
    if (room > 0 && chunk.length > 0) {
      const kept = chunk.subarray(0, room);
      this.#chunks.push(kept);
      this.#kept += kept.length;
    }
  }

  /** What was kept. */
  get bytes(): Uint8Array {
    return joinBytes(this.#chunks);
  }

  /** Whether there was more. */
  get truncated(): boolean {
    return this.#truncated;
  }
}
