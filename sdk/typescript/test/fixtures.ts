/** Sandboxes for tests; the server is that of ATOLL_URL, shown ATOLL_TOKEN. */

import { Sandbox, type SandboxOptions } from "../src/index.ts";

/** Run a test in a sandbox of its own. */
export function inSandbox(
  test: (sandbox: Sandbox) => Promise<void>,
  options: SandboxOptions = {},
): () => Promise<void> {
  return async () => {
    await using sandbox = await Sandbox.create({ template: "base", ...options });
    await test(sandbox);
  };
}

/** Wait until something is so; the test's own time limit ends it otherwise. */
export async function until(isSo: () => Promise<boolean>): Promise<void> {
  while (!(await isSo())) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Run something into a timeout, with more time where a busy machine did not come as far as to print anything. */
export async function onceItPrints<T extends { stdout: string }>(
  run: (timeoutMs: number) => Promise<T>,
): Promise<T> {
  const result = await run(300);
  return result.stdout === "" ? run(20_000) : result;
}

/** Bytes that are no text in any usual encoding, and such that only seem to be: each has broken somebody's client. */
export const HOSTILE: Readonly<Record<string, Uint8Array>> = {
  "every byte": Uint8Array.from({ length: 256 }, (_, byte) => byte),
  "a byte order mark": Uint8Array.of(0xef, 0xbb, 0xbf, 0x61),
  "half a character at the end": Uint8Array.of(0x61, 0xe2, 0x82),
  "half a surrogate pair in UTF-8": Uint8Array.of(0xed, 0xa0, 0x80, 0x0a),
  "zeros and no final newline": Uint8Array.of(0, 0x61, 0, 0x62),
  "line ends of all kinds": new TextEncoder().encode("a\r\nb\rc\n\u2028d\u2029e\u0085"),
  "UTF-16": Uint8Array.of(0xff, 0xfe, 0x3d, 0xd8, 0x00, 0xde),
};
