/** Sessions for programs that were written for containers, on an Atoll server. */

export {
  SandboxDockerCommandError,
  SandboxDockerUnavailableError,
  SandboxError,
  SandboxFileSizeError,
  SandboxPathError,
  SandboxPortError,
  SandboxProcessError,
  SandboxSessionDestroyedError,
  SandboxTimeoutError,
  SandboxToolPolicyError,
} from "./errors.ts";
export { DockerSandbox } from "./sandbox.ts";
export { DockerSandboxSession } from "./session.ts";
export * from "./tools.ts";
export * from "./types.ts";
