import assert from "node:assert/strict";
import { test } from "node:test";

import {
  AtollError,
  Client,
  Conflict,
  InvalidRequest,
  NotFound,
  Sandbox,
  Unauthorized,
  Unavailable,
  Unsupported,
  Workspaces,
} from "../src/index.ts";
import { inSandbox, until } from "./fixtures.ts";

const name = () => `ts-${crypto.randomUUID().slice(0, 8)}`;

test("a sandbox is what was asked for", async () => {
  const asked = name();
  await using sandbox = await Sandbox.create({
    template: "base",
    name: asked,
    env: { GREETING: "hello" },
    files: { "notes/a.txt": "ä", "b.bin": Uint8Array.of(0xff, 0) },
    directories: ["empty"],
    metadata: { purpose: "test" },
    labels: { team: asked },
    lifetimeMs: 600_000,
    limits: { memoryBytes: 256 << 20, cpus: 0.5, processes: 64 },
  });
  const info = await sandbox.info();
  assert.equal(info.name, asked);
  assert.equal(info.template, "base");
  assert.deepEqual(info.metadata, { purpose: "test" });
  assert.equal(info.limits.memory_bytes, 256 << 20);
  assert.equal((await sandbox.commands.run("echo $GREETING")).stdout, "hello\n");
  assert.equal(await sandbox.files.read("notes/a.txt"), "ä");
  assert.deepEqual(await sandbox.files.readBytes("b.bin"), Uint8Array.of(0xff, 0));
  assert.equal((await sandbox.files.stat("empty")).kind, "directory");

  const again = await Sandbox.connect(asked);
  assert.equal(again.id, sandbox.id);
  const found = [];
  for await (const each of Sandbox.list({ labels: { team: asked } })) {
    found.push(each.id);
  }
  assert.deepEqual(found, [sandbox.id]);
});

test("leaving destroys a sandbox, and destroying twice is fine", async () => {
  let id: string;
  {
    await using sandbox = await Sandbox.create({ template: "base" });
    id = sandbox.id;
    await sandbox.destroy();
  }
  await assert.rejects(Sandbox.connect(id), (error) => {
    assert.ok(error instanceof NotFound);
    assert.match(error.message, /is no more/);
    return true;
  });
});

test("errors are those of the server, with all that it says", async () => {
  await assert.rejects(Sandbox.connect("nosuchsandbox"), (error) => {
    assert.ok(error instanceof NotFound && error instanceof AtollError);
    assert.equal(error.code, "not_found");
    assert.equal(error.status, 404);
    assert.equal(error.retryable, false);
    return true;
  });
  await assert.rejects(Sandbox.create({ template: "nosuch" }), (error) => {
    assert.ok(error instanceof InvalidRequest);
    assert.match(error.message, /there is no template 'nosuch'/);
    assert.equal(error.details.template, "nosuch");
    return true;
  });
  await assert.rejects(Sandbox.connect("x", { token: "atoll_wrong" }), Unauthorized);
});

test("a name is taken once", async () => {
  const taken = name();
  await using _first = await Sandbox.create({ template: "base", name: taken });
  await assert.rejects(Sandbox.create({ template: "base", name: taken }), Conflict);
});

test("a server that is not there is told, with the way out", async () => {
  const nowhere = { url: "http://127.0.0.1:9", retries: 0 };
  await assert.rejects(Sandbox.create(nowhere), (error) => {
    assert.ok(error instanceof Unavailable);
    assert.ok(error.retryable);
    assert.match(error.nextStep ?? "", /atoll up/);
    return true;
  });
  assert.throws(() => new Client({ url: "127.0.0.1:8000" }), InvalidRequest);
  assert.throws(() => new Client({ token: "atoll_x\n" }), InvalidRequest);
});

test("ids cannot be made to name other routes", async () => {
  const client = new Client();
  for (const id of ["..", ".", ""]) {
    await assert.rejects(new Sandbox(client, id).info(), InvalidRequest);
  }
  for (const id of ["../health", "x?y#z"]) {
    await assert.rejects(new Sandbox(client, id).info(), /sandbox/);
  }
});

test("a creation that is aborted leaves no sandbox", async () => {
  const label = name();
  const labels = { aborted: label };
  const gate = new AbortController();
  const fetch: typeof globalThis.fetch = async (input, init) => {
    const answer = await globalThis.fetch(input, init);
    gate.abort(new Error("changed my mind"));
    return answer;
  };
  const creating = Sandbox.create({ template: "base", labels, fetch, signal: gate.signal });
  await assert.rejects(creating, /changed my mind/);
  await until(async () => {
    for await (const _ of Sandbox.list({ labels })) {
      return false;
    }
    return true;
  });
  const over = [];
  for await (const each of Sandbox.list({ labels, states: ["destroyed"] })) {
    over.push(each);
  }
  assert.equal(over.length, 1);
});

test(
  "pausing stops everything in place",
  inSandbox(async (sandbox) => {
    try {
      await sandbox.pause();
    } catch (error) {
      // A server without cgroups, which says so.
      assert.ok(error instanceof Unsupported);
      return;
    }
    assert.equal((await sandbox.info()).status, "paused");
    await sandbox.resume();
    assert.equal((await sandbox.info()).status, "running");
  }),
);

test("a workspace outlives its sandboxes", async () => {
  const workspace = name();
  const options = { template: "base", workspace };
  {
    await using first = await Sandbox.create(options);
    await first.files.write("kept", "still here");
  }
  {
    await using second = await Sandbox.create(options);
    assert.equal(await second.files.read("kept"), "still here");
    await assert.rejects(new Workspaces().remove(workspace), Conflict);
  }
  const workspaces = new Workspaces();
  assert.equal((await workspaces.find(workspace)).sandbox, null);
  assert.ok((await workspaces.list()).some((each) => each.id === workspace));
  await workspaces.remove(workspace);
  await assert.rejects(workspaces.find(workspace), NotFound);
});

test(
  "ports are listed and waited for",
  inSandbox(async (sandbox) => {
    const server = "import socket,time; s=socket.create_server(('127.0.0.1',8123)); time.sleep(60)";
    await sandbox.commands.start(["python3", "-c", server]);
    await sandbox.ports.wait(8123);
    const found = (await sandbox.ports.list()).find((each) => each.port === 8123);
    assert.equal(found?.is_loopback, true);
    await assert.rejects(
      sandbox.ports.wait(8124, { timeoutMs: 50 }),
      /nothing listens on port 8124/,
    );
  }),
);

test(
  "a published port leads in from this machine",
  { skip: globalThis.WebSocket === undefined },
  inSandbox(async (sandbox) => {
    await sandbox.files.write("note", "inside");
    await sandbox.commands.start(["python3", "-m", "http.server", "8000"]);
    await sandbox.ports.wait(8000);
    const port = await sandbox.ports.publish(8000);
    assert.equal(await (await fetch(`${port.url}/note`)).text(), "inside");
    await assert.rejects(
      sandbox.ports.publish(8000, { hostPort: port.hostPort }),
      (error) => error instanceof Unavailable && /of this machine/.test(error.message),
    );
    await port.close();
    await assert.rejects(fetch(port.url));
  }),
);
