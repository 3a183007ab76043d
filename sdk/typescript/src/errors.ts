/** The one error tree: what Atoll failed to do, never what the user's program did. */

import type { components } from "./generated/api.ts";

/** Why a request was not answered as it asked, as it crosses the wire. */
export type Problem = components["schemas"]["Problem"];

/** What an error says besides its message. */
export interface ErrorFacts {
  details?: Record<string, unknown>;
  retryable?: boolean;
  nextStep?: string | null;
  status?: number | null;
  retryAfterMs?: number | null;
  cause?: unknown;
}

/** An error with a stable code, a message that names the way out, and details for machines. */
export class AtollError extends Error {
  static readonly code: string = "error";
  readonly code: string;
  readonly details: Readonly<Record<string, unknown>>;
  /** Whether trying again may help. */
  readonly retryable: boolean;
  /** What to do now, where that is known. */
  readonly nextStep: string | null;
  /** The HTTP status of the answer, if a server gave it. */
  readonly status: number | null;
  /** How long the server asks to wait before trying again. */
  readonly retryAfterMs: number | null;

  constructor(message: string, facts: ErrorFacts = {}) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.name = new.target.name;
    this.code = new.target.code;
    this.details = facts.details ?? {};
    this.retryable = facts.retryable ?? false;
    this.nextStep = facts.nextStep ?? null;
    this.status = facts.status ?? null;
    this.retryAfterMs = facts.retryAfterMs ?? null;
  }
}

/** The caller asked for something impossible. */
export class InvalidRequest extends AtollError {
  static override readonly code = "invalid_request";
}

/** Nobody has shown who is asking. */
export class Unauthorized extends AtollError {
  static override readonly code = "unauthorized";
}

/** The one who asks may not do this. */
export class Forbidden extends AtollError {
  static override readonly code = "forbidden";
}

/** There is no such thing, or none that the caller may see. */
export class NotFound extends AtollError {
  static override readonly code = "not_found";
}

/** A right request at the wrong moment. */
export class Conflict extends AtollError {
  static override readonly code = "conflict";
}

/** A limit or a quota would be passed. */
export class LimitExceeded extends AtollError {
  static override readonly code = "limit_exceeded";
}

/** Atoll itself did not answer in time; a command's timeout is a result instead. */
export class TimedOut extends AtollError {
  static override readonly code = "timed_out";
}

/** A command or a cell did not succeed; thrown by `check()` only. */
export class CommandFailed extends AtollError {
  static override readonly code = "command_failed";
}

/** This engine, or this machine, cannot do that. */
export class Unsupported extends AtollError {
  static override readonly code = "unsupported";
}

/** Not now; trying again may help. */
export class Unavailable extends AtollError {
  static override readonly code = "unavailable";
}

/** A bug of Atoll's. */
export class InternalError extends AtollError {
  static override readonly code = "internal";
}

const KINDS = [
  InvalidRequest,
  Unauthorized,
  Forbidden,
  NotFound,
  Conflict,
  LimitExceeded,
  TimedOut,
  CommandFailed,
  Unsupported,
  Unavailable,
  InternalError,
];
const BY_CODE = new Map(KINDS.map((kind) => [kind.code as string, kind]));

/** Return the error that a problem tells of; one of a code that is unknown is an `InternalError`. */
export function errorOf(problem: Problem, retryAfterMs: number | null = null): AtollError {
  const kind = BY_CODE.get(problem.code) ?? InternalError;
  return new kind(problem.message, {
    retryAfterMs,
    details: problem.details,
    retryable: problem.retryable,
    nextStep: problem.next_step,
    status: problem.status,
  });
}
