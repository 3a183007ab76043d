import assert from "node:assert/strict";
import { test } from "node:test";

import {
  DockerSandbox,
  type DockerSandboxOptions,
  type DockerSandboxSession,
  isSandboxPortSession,
  isSandboxProcessSession,
  SandboxDockerCommandError,
  SandboxDockerUnavailableError,
  SandboxError,
  SandboxFileSizeError,
  SandboxPathError,
  SandboxPortError,
  SandboxProcessError,
  SandboxSessionDestroyedError,
  SandboxTimeoutError,
} from "../src/docker/index.ts";
import { HOSTILE, onceItPrints, until } from "./fixtures.ts";

// The quickest template; what is tested here is the same in each.
function inSession(
  check: (session: DockerSandboxSession) => Promise<void>,
  options: DockerSandboxOptions = {},
): () => Promise<void> {
  return async () => {
    await using session = await new DockerSandbox({ image: "base", ...options }).createSession();
    await check(session);
  };
}

const sh = (script: string) => ({ command: "sh", args: ["-c", script] });

test(
  "a result tells all about a command",
  inSession(async (session) => {
    const { durationMs, ...result } = await session.exec(sh("echo out; echo err >&2; exit 3"));
    assert.ok(durationMs > 0);
    assert.deepEqual(result, {
      stdout: "out\n",
      stderr: "err\n",
      exitCode: 3,
      timedOut: false,
      aborted: false,
      stdoutTruncated: false,
      stderrTruncated: false,
    });
    assert.equal((await session.exec({ command: "nosuchprogram" })).exitCode, 127);
    await assert.rejects(session.exec({ command: " " }), SandboxError);
  }),
);

test(
  "input and output are bytes as they are",
  inSession(async (session) => {
    for (const [what, bytes] of Object.entries(HOSTILE)) {
      const chunks: number[] = [];
      const onStdout = (chunk: Uint8Array) => chunks.push(...chunk);
      await session.exec({ command: "cat", input: bytes, onStdout });
      assert.deepEqual(Uint8Array.from(chunks), bytes, what);
      await session.writeFile("file", bytes);
      assert.deepEqual(await session.readFile("file"), bytes, what);
    }
  }),
);

test(
  "a timeout and an abort are results, with what was printed until then",
  inSession(async (session) => {
    const late = await onceItPrints((timeoutMs) =>
      session.exec({ ...sh("echo on; sleep 1000"), timeoutMs }),
    );
    assert.deepEqual(
      [late.timedOut, late.aborted, late.exitCode, late.stdout],
      [true, false, 124, "on\n"],
    );

    const gate = new AbortController();
    const ended = await session.exec({
      ...sh("echo $$ > pid; echo on; exec sleep 1000"),
      signal: gate.signal,
      onStdout: () => gate.abort(),
    });
    assert.deepEqual([ended.timedOut, ended.aborted, ended.stdout], [false, true, "on\n"]);
    assert.notEqual((await session.exec(sh("kill -0 $(cat pid)"))).exitCode, 0);
    const never = await session.exec({ ...sh("touch made"), signal: gate.signal });
    assert.equal(never.aborted, true);
    assert.deepEqual(
      (await session.listFiles()).map((each) => each.path),
      ["pid"],
    );
  }),
);

test(
  "limits hold",
  inSession(
    async (session) => {
      const cut = await session.exec(sh("echo 0123456789"));
      assert.deepEqual(
        [cut.stdout, cut.stdoutTruncated, cut.stderrTruncated],
        ["01234", true, false],
      );
      assert.equal((await session.exec(sh("sleep 60"))).timedOut, true);
      await session.writeFile("eight", "12345678");
      await assert.rejects(session.writeFile("nine", "123456789"), SandboxFileSizeError);
      await session.exec(sh("printf 123456789 > nine"));
      await assert.rejects(session.readFile("nine"), SandboxFileSizeError);
      assert.equal(await session.readTextFile("eight"), "12345678");
      const { limits } = await session.sandbox.info();
      assert.deepEqual([limits.memory_bytes, limits.cpus, limits.processes], [256 << 20, 0.5, 50]);
    },
    {
      limits: {
        timeoutMs: 5000,
        maxOutputBytes: 5,
        maxFileBytes: 8,
        memoryMb: 256,
        cpus: 0.5,
        pidsLimit: 50,
      },
    },
  ),
);

test(
  "paths stay in the workspace",
  inSession(async (session) => {
    for (const path of ["", "/etc/passwd", "../x", "a/../../x", "a\0b", "..\\x", "C:\\x"]) {
      await assert.rejects(session.readFile(path), SandboxPathError, path);
      await assert.rejects(session.writeTextFile(path, ""), SandboxPathError, path);
      if (path !== "") {
        await assert.rejects(session.exec({ command: "true", cwd: path }), SandboxPathError, path);
      }
    }
    await session.exec(sh("ln -s /etc/passwd planted"));
    await assert.rejects(session.readFile("planted"), SandboxDockerCommandError);
    await session.writeTextFile("a\\b/./c/../d.txt", "x");
    assert.deepEqual(await session.listFiles("a/b"), [
      { path: "a/b/d.txt", type: "file", size: 1 },
    ]);
    await assert.rejects(session.readFile("nosuch"), SandboxDockerCommandError);
    const manifest = { files: { "../x": "" } };
    await assert.rejects(
      new DockerSandbox({ image: "base" }).createSession({ manifest }),
      SandboxPathError,
    );
  }),
);

test(
  "pages of text go on where the last one ended",
  inSession(async (session) => {
    await session.writeTextFile("log", "one\ntwo\nthree\n");
    const first = await session.readTextFilePage("log", { lineCount: 2 });
    assert.deepEqual(first, {
      content: "one\ntwo\n",
      startLine: 1,
      endLine: 2,
      nextStartLine: 3,
      truncated: true,
      truncatedBy: "lines",
    });
    const rest = await session.readTextFilePage("log", { startLine: 3 });
    assert.deepEqual([rest.content, rest.nextStartLine, rest.truncated], ["three\n", null, false]);
  }),
);

test(
  "a destroyed session says so, and destroying it again is fine",
  inSession(async (session) => {
    await Promise.all([session.destroy(), session.destroy()]);
    await session.destroy();
    await assert.rejects(session.exec(sh("true")), SandboxSessionDestroyedError);
    await assert.rejects(session.readFile("x"), SandboxSessionDestroyedError);
    await assert.rejects(session.startProcess(sh("true")), SandboxSessionDestroyedError);
  }),
);

test(
  "a session that the server ended says so",
  inSession(async (session) => {
    await session.sandbox.destroy();
    await assert.rejects(session.exec(sh("true")), SandboxSessionDestroyedError);
  }),
);

test("hooks are told in order", async () => {
  const told: unknown[] = [];
  const hooks = {
    onSessionCreate: (event: { sessionId: string }) => told.push(["create", event.sessionId]),
    onExecStart: async (event: { command: string }) => told.push(["start", event.command]),
    onExecEnd: (event: { result: { exitCode: number } }) =>
      told.push(["end", event.result.exitCode]),
    onFileWrite: (event: { path: string; size: number }) =>
      told.push(["write", event.path, event.size]),
    onDestroy: () => told.push(["destroy"]),
  };
  const id = `Hooks of ${crypto.randomUUID().slice(0, 8)}`;
  const session = await new DockerSandbox({ image: "base", hooks }).createSession({ id });
  await session.exec(sh("exit 2"));
  await session.writeTextFile("a/b", "ü");
  await session.destroy();
  assert.deepEqual(told, [
    ["create", id.toLowerCase().replaceAll(" ", "-")],
    ["start", "sh"],
    ["end", 2],
    ["write", "a/b", 2],
    ["destroy"],
  ]);
});

test(
  "processes run in the background",
  inSession(
    async (session) => {
      assert.ok(isSandboxProcessSession(session));
      const started = await session.startProcess(
        sh("echo ready; echo oops >&2; sleep 1000 & echo $! > pid; wait"),
      );
      assert.deepEqual([started.status, started.command, started.args[0]], ["running", "sh", "-c"]);
      await until(async () => (await session.readProcessLogs(started.id)).stderr !== "");
      const logs = await session.readProcessLogs(started.id, { tailBytes: 3 });
      assert.deepEqual([logs.stdout, logs.stdoutTruncated], ["dy\n", true]);
      assert.equal((await session.readProcessLogs(started.id, { tailBytes: 0 })).stdout, "");

      const second = await session.startProcess(sh("exit 4"));
      await until(async () => (await session.listProcesses())[1]?.status === "exited");
      assert.equal((await session.listProcesses())[1]?.exitCode, 4);
      await session.startProcess(sh("sleep 1000"));
      await assert.rejects(session.startProcess(sh("true")), SandboxProcessError);
      assert.ok((await session.listProcesses()).every((each) => each.id !== second.id));

      const stopped = await session.stopProcess(started.id, { gracePeriodMs: 2000 });
      assert.equal(stopped.status, "stopped");
      assert.notEqual((await session.exec(sh("kill -0 $(cat pid)"))).exitCode, 0);
      await assert.rejects(session.readProcessLogs("nosuch"), SandboxProcessError);
    },
    { limits: { maxProcesses: 2 } },
  ),
);

const hasWebSocket = globalThis.WebSocket !== undefined;
const noWebSocket = hasWebSocket ? false : "this platform has no WebSocket";

test("ports lead in from this machine's loopback", { skip: noWebSocket }, async () => {
  const sandbox = new DockerSandbox({ image: "base" });
  await using session = await sandbox.createSession({ ports: [8080, 8081] });
  assert.ok(isSandboxPortSession(session));
  assert.deepEqual(
    session.publishedPorts.map((each) => each.containerPort),
    [8080, 8081],
  );
  await session.writeTextFile("index.html", "from inside");
  const serve = (port: string, host: string) =>
    session.startProcess({ command: "python3", args: ["-m", "http.server", port, "--bind", host] });
  await serve("8080", "0.0.0.0");
  await serve("8081", "127.0.0.1");
  const port = await session.waitForPort(8080);
  const answer = await fetch(`http://${port.host}:${port.hostPort}/index.html`);
  assert.equal(await answer.text(), "from inside");
  await session.sandbox.ports.wait(8081);
  const hidden = session.waitForPort(8081, { timeoutMs: 200, intervalMs: 50 });
  await assert.rejects(hidden, SandboxTimeoutError);
  await assert.rejects(session.waitForPort(9), SandboxPortError);
});

test("ports that cannot be are refused", async () => {
  const sandbox = new DockerSandbox({ image: "base" });
  for (const ports of [[0], [65_536], [1.5], [80, 80]]) {
    await assert.rejects(sandbox.createSession({ ports }), SandboxPortError);
  }
});

test("what this server cannot honour is refused, not left out", async () => {
  const refused: DockerSandboxOptions[] = [
    { image: "alpine:3" },
    { image: "registry.example/own:1" },
    { pull: "always" },
    { workdir: "/srv" },
    { user: "root" },
    { dockerPath: "/opt/docker" },
    { network: "host" },
    { network: { mode: "host" } },
    { network: "somebodys-network" },
    { lifecycle: { autoDestroy: false } },
    { security: { noNewPrivileges: false } },
    { security: { dropCapabilities: ["NET_RAW"] } },
    { security: { seccompProfile: "x" } as object },
    { runtime: "runsc" },
    // The server of these tests has no such engine.
    { engine: "docker", image: "alpine:3" },
  ];
  for (const options of refused) {
    const what = JSON.stringify(options);
    await assert.rejects(
      new DockerSandbox(options).createSession(),
      SandboxDockerCommandError,
      what,
    );
  }
});

test("a server that is not there is told", async () => {
  const server = { url: "http://127.0.0.1:9", retries: 0 };
  const creating = new DockerSandbox({ server }).createSession();
  await assert.rejects(creating, SandboxDockerUnavailableError);
});

test("a persistent workspace goes on, and goes with its session if that was asked for", async () => {
  const id = `ts-${crypto.randomUUID().slice(0, 8)}`;
  const sandbox = new DockerSandbox({ image: "base", workspace: { mode: "persistent", id } });
  const first = await sandbox.createSession();
  await first.writeTextFile("kept", "1");
  await first.destroy();
  const removing = { mode: "persistent", id, destroyOnSessionDestroy: true } as const;
  const second = await sandbox.createSession({ workspace: removing });
  assert.equal(await second.readTextFile("kept"), "1");
  await second.destroy();
  await using third = await sandbox.createSession({ workspace: removing });
  assert.deepEqual(await third.listFiles(), []);
});

test("an unused session ends, whatever runs in its background", async () => {
  const lifecycle = { ttlMs: 600_000, idleTimeoutMs: 10_000 };
  const session = await new DockerSandbox({ image: "base", lifecycle }).createSession();
  await session.startProcess(sh("sleep 1000"));
  await until(async () => (await session.sandbox.info()).deleted_at !== null);
  await assert.rejects(session.exec(sh("true")), SandboxSessionDestroyedError);
});
