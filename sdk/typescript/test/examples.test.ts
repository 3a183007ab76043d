/** Programs as their authors write them: those of the façade's own guide, line by line. */

import assert from "node:assert/strict";
import process from "node:process";
import { test } from "node:test";

import { createSandboxTools, DockerSandbox } from "../src/docker/index.ts";

test("the quick start", async () => {
  const sandbox = new DockerSandbox();
  const session = await sandbox.createSession();

  // Run a command
  const result = await session.exec({ command: "node", args: ["-e", "console.log(42)"] });
  assert.equal(result.stdout, "42\n");

  // Clean up
  await session.destroy();
});

test("an image and limits", async () => {
  const sandbox = new DockerSandbox({
    image: "python:3.12-slim",
    limits: { timeoutMs: 30_000, maxFileBytes: 5_000_000, memoryMb: 512, cpus: 1 },
  });
  await using session = await sandbox.createSession();
  const result = await session.exec({ command: "python3", args: ["-c", "print(6 * 7)"] });
  assert.equal(result.stdout, "42\n");
});

test("a network of the host's can be asked for, and is refused", async () => {
  const sandbox = new DockerSandbox({
    network: { mode: "host" },
  });
  await assert.rejects(sandbox.createSession(), /network "host" cannot be honoured/);
});

test("presets", async () => {
  const nodeSandbox = DockerSandbox.node();
  const pythonSandbox = DockerSandbox.python();
  const denoSandbox = DockerSandbox.deno();
  await using node = await nodeSandbox.createSession();
  assert.equal((await node.exec({ command: "node", args: ["-p", "6 * 7"] })).stdout, "42\n");
  await using python = await pythonSandbox.createSession();
  assert.equal(
    (await python.exec({ command: "python3", args: ["-c", "print(42)"] })).stdout,
    "42\n",
  );
  await using deno = await denoSandbox.createSession();
  const args = ["eval", "console.log(6 * 7)"];
  assert.equal((await deno.exec({ command: "deno", args })).stdout, "42\n");
});

test("security", async () => {
  const sandbox = new DockerSandbox({
    security: {
      readonlyRootfs: false, // allow writes to root filesystem
      noNewPrivileges: true,
      dropCapabilities: ["ALL"],
    },
  });
  await using session = await sandbox.createSession();
  const status = await session.exec({ command: "cat", args: ["/proc/self/status"] });
  assert.match(status.stdout, /CapEff:\s+0+\nCapBnd:\s+0+\n/);
  assert.match(status.stdout, /NoNewPrivs:\s+1\n/);
});

test("a session with a manifest", async () => {
  const sandbox = new DockerSandbox();
  const session = await sandbox.createSession({
    id: "my-session", // optional custom ID
    workspace: { mode: "ephemeral" },
    metadata: { userId: "123" }, // optional metadata
    manifest: {
      files: {
        "main.ts": 'console.log("hello")',
        "data.json": '{"key": "value"}',
      },
      directories: ["src", "tests"],
      env: { API_KEY: "secret" },
    },
  });
  assert.equal(session.id, "my-session");
  assert.deepEqual((await session.sandbox.info()).metadata, { userId: "123" });
  const entries = await session.listFiles();
  assert.deepEqual(
    entries.map(({ path, type }) => `${type} ${path}`),
    ["file data.json", "file main.ts", "directory src", "directory tests"],
  );

  const abortController = new AbortController();
  const chunks: Uint8Array[] = [];
  const result = await session.exec({
    command: "node",
    args: ["main.ts"],
    cwd: "src", // working directory (relative to workdir)
    env: { DEBUG: "true" }, // additional environment variables
    timeoutMs: 10_000, // per-command timeout
    input: "stdin data", // stdin input
    signal: abortController.signal, // abort signal
    onStdout: (_chunk) => {}, // streaming stdout callback
    onStderr: (chunk) => chunks.push(chunk), // streaming stderr callback
  });
  // There is no main.ts in src.
  assert.equal(result.stdout, "");
  assert.match(result.stderr, /Cannot find module/);
  assert.equal(result.exitCode, 1);
  assert.ok(result.durationMs > 0);
  assert.equal(result.timedOut, false);
  assert.ok(chunks.length > 0);
  const shown = await session.exec({ command: "sh", args: ["-c", "echo $API_KEY"] });
  assert.equal(shown.stdout, "secret\n");
  await session.destroy();
});

test("a persistent workspace", async () => {
  const sandbox = new DockerSandbox();
  const userId = crypto.randomUUID().slice(0, 8);
  const session = await sandbox.createSession({
    workspace: {
      mode: "persistent",
      id: `user-${userId}`,
    },
  });
  await session.destroy();
  const workspace = {
    mode: "persistent",
    id: `user-${userId}`,
    destroyOnSessionDestroy: true,
  } as const;
  await (await sandbox.createSession({ workspace })).destroy();
});

test("streaming", async () => {
  const sandbox = new DockerSandbox();
  const manifest = { files: { "package.json": '{"scripts": {"test": "echo tests ran"}}' } };
  await using session = await sandbox.createSession({ manifest });
  let shown = "";
  for await (const event of session.execStream({ command: "npm", args: ["test"] })) {
    if (event.type === "stdout" || event.type === "stderr") {
      process.stdout.write(event.text);
      shown += event.text;
    }
  }
  assert.match(shown, /tests ran/);
});

test("file operations", async () => {
  const sandbox = new DockerSandbox();
  const session = await sandbox.createSession();
  const uint8Array = Uint8Array.of(0, 0xff, 0x80);

  // Write files
  await session.writeTextFile("output.txt", "Hello, world!");
  await session.writeFile("binary.bin", uint8Array);

  // Read files
  const content = await session.readTextFile("output.txt");
  const bytes = await session.readFile("binary.bin");
  assert.equal(content, "Hello, world!");
  assert.deepEqual(bytes, uint8Array);

  // List files
  await session.writeTextFile("src/index.ts", "x".repeat(1234));
  const files = await session.listFiles("src");
  assert.deepEqual(files, [{ path: "src/index.ts", type: "file", size: 1234 }]);
  await session.destroy();
});

test("agent tools", async () => {
  const sandbox = new DockerSandbox();
  const session = await sandbox.createSession();
  const tools = createSandboxTools(session, {
    allow: ["exec_command", "read_file", "write_file", "list_files"],
    exec: {
      allowedCommands: ["node", "npm"],
      maxTimeoutMs: 30_000,
    },
  });
  assert.equal(tools.length, 4);
  const few = createSandboxTools(session, {
    include: ["exec_command", "read_file"], // only include specific tools
    execTimeoutMs: 30_000, // default timeout for exec_command
  });
  assert.match(
    (await few[0]?.execute({ command: "node", args: ["-p", "42"] })) ?? "",
    /stdout:\n42/,
  );
  await session.destroy();
});
