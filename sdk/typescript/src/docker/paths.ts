/** Paths in the workspace: relative, and never out of it. */

import { SandboxPathError } from "./errors.ts";

/** Return a path in its shortest form; throws `SandboxPathError` for one that is absolute, empty or leads out. */
export function checkPath(path: string): string {
  if (typeof path !== "string" || path.trim() === "") {
    throw new SandboxPathError(
      "a path is empty; it is relative to the workspace, such as src/main.ts",
    );
  }
  if (path.includes("\0")) {
    throw new SandboxPathError(`path ${JSON.stringify(path)} holds a zero character`);
  }
  const shown = path.replaceAll("\\", "/");
  if (shown.startsWith("/") || /^[a-zA-Z]:\//.test(shown)) {
    throw new SandboxPathError(
      `path ${JSON.stringify(path)} is absolute; make it relative to the workspace`,
    );
  }
  const parts: string[] = [];
  for (const part of shown.split("/")) {
    if (part === "..") {
      if (parts.pop() === undefined) {
        throw new SandboxPathError(`path ${JSON.stringify(path)} leads out of the workspace`);
      }
    } else if (part !== "" && part !== ".") {
      parts.push(part);
    }
  }
  return parts.join("/") || ".";
}
