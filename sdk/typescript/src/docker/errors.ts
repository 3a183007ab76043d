/** Errors in the words of programs that were written for containers; Atoll's own is the cause of each. */

import { AtollError, Conflict, LimitExceeded, NotFound, TimedOut, Unavailable } from "../errors.ts";

/** What went wrong with a sandbox. */
export class SandboxError extends Error {
  constructor(message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
  }
}

/** No server answers. */
export class SandboxDockerUnavailableError extends SandboxError {}

/** The server refused, or cannot do what was asked. */
export class SandboxDockerCommandError extends SandboxError {
  readonly stdout = "";
  readonly stderr: string;
  readonly exitCode = 1;
  readonly result: { stdout: string; stderr: string; exitCode: number };

  constructor(message: string, cause?: unknown) {
    super(message, cause);
    this.stderr = message;
    this.result = { stdout: this.stdout, stderr: this.stderr, exitCode: this.exitCode };
  }
}

/** The session is no more. */
export class SandboxSessionDestroyedError extends SandboxError {}

/** A path that does not stay in the workspace. */
export class SandboxPathError extends SandboxError {}

/** Something took longer than it may. A command's timeout is a result instead. */
export class SandboxTimeoutError extends SandboxError {}

/** A file is larger than the session allows. */
export class SandboxFileSizeError extends SandboxError {}

/** A tool was asked for what its policy forbids. */
export class SandboxToolPolicyError extends SandboxError {}

/** A port is not published, or nothing can be. */
export class SandboxPortError extends SandboxError {}

/** There is no such process, or there are too many. */
export class SandboxProcessError extends SandboxError {}

/** Return what a promise gives; errors of Atoll's become those above. */
export async function withTheirErrors<T>(promise: Promise<T>): Promise<T> {
  try {
    return await promise;
  } catch (error) {
    throw asTheirs(error);
  }
}

/** Return an error of Atoll's as one of those above; any other as it is. */
export function asTheirs(error: unknown): unknown {
  if (!(error instanceof AtollError)) {
    return error;
  }
  // One that is just ending is still there, and tells its state.
  const isOver =
    error instanceof NotFound || (error instanceof Conflict && "state" in error.details);
  if (isOver && error.details.sandbox !== undefined) {
    return new SandboxSessionDestroyedError(error.message, error);
  }
  if (error instanceof Unavailable && error.status === null) {
    return new SandboxDockerUnavailableError(error.message, error);
  }
  if (error instanceof TimedOut) {
    return new SandboxTimeoutError(error.message, error);
  }
  if (error instanceof LimitExceeded && error.status === 413) {
    return new SandboxFileSizeError(error.message, error);
  }
  return new SandboxDockerCommandError(error.message, error);
}
