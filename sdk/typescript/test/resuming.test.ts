/** Connections that break: nothing is lost, and nothing happens twice. */

import assert from "node:assert/strict";
import { connect, createServer, type Socket } from "node:net";
import { test } from "node:test";

import { Client, LimitExceeded, Sandbox, Unavailable } from "../src/index.ts";

type Fetch = typeof globalThis.fetch;

/** Return a fetch whose answers break after so many bytes, at most so often. */
function breaking(bytes: number, times: number): Fetch & { broken: number } {
  const fetch = async (input: Parameters<Fetch>[0], init?: RequestInit): Promise<Response> => {
    const answer = await globalThis.fetch(input, init);
    const isEvents = answer.headers.get("content-type")?.startsWith("application/x-ndjson");
    if (!isEvents || answer.body === null || counting.broken >= times) {
      return answer;
    }
    counting.broken += 1;
    let left = bytes;
    const body = answer.body.pipeThrough(
      new TransformStream<Uint8Array, Uint8Array>({
        transform(chunk, controller) {
          controller.enqueue(chunk.subarray(0, left));
          left -= chunk.length;
          if (left <= 0) {
            controller.error(new TypeError("the connection was reset"));
          }
        },
      }),
    );
    const cut = new Response(body, { status: answer.status, headers: answer.headers });
    Object.defineProperty(cut, "url", { value: answer.url });
    return cut;
  };
  const counting = Object.assign(fetch as Fetch, { broken: 0 });
  return counting;
}

/** Return a fetch that loses the answers to the first requests which it is told of, after the server has acted. */
function losing(
  isLost: (init: RequestInit | undefined, url: string) => boolean,
  times: number,
): Fetch {
  let left = times;
  return async (input, init) => {
    const answer = await globalThis.fetch(input, init);
    if (left > 0 && isLost(init, String(input))) {
      left -= 1;
      await answer.body?.cancel();
      throw new TypeError("the answer was lost");
    }
    return answer;
  };
}

/** A way to the server on which connections break after so many bytes of answers, at most so often. */
async function badLine(
  bytes: number,
  times: number,
): Promise<AsyncDisposable & { url: string; broken: number }> {
  const { hostname, port } = new URL(new Client().url);
  const sockets = new Set<Socket>();
  const server = createServer((near) => {
    const far = connect(Number(port), hostname);
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(from);
      from.on("error", () => to.destroy());
      from.on("close", () => to.destroy());
    }
    let left = line.broken < times ? bytes : Number.POSITIVE_INFINITY;
    near.on("data", (data) => far.write(data));
    far.on("data", (data) => {
      if (data.length <= left) {
        near.write(data);
      } else if (left > 0) {
        line.broken += 1;
        near.write(data.subarray(0, left), () => near.destroy());
      }
      left -= data.length;
    });
  });
  await new Promise<void>((resolve) => {
    server.listen(0, "127.0.0.1", resolve);
  });
  const address = server.address();
  assert.ok(address !== null && typeof address === "object");
  const close = async () => {
    for (const socket of sockets) {
      socket.destroy();
    }
    server.close();
  };
  // The server is known by its own name, whatever the port.
  const url = `http://127.0.0.1:${address.port}`;
  const line = { url, broken: 0, [Symbol.asyncDispose]: close };
  return line;
}

test("connections that break are made anew, and nothing is lost or comes twice", async () => {
  await using line = await badLine(2500, 30);
  await using sandbox = await Sandbox.create({ template: "base", url: line.url, retries: 20 });
  const program = "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); sleep 0.002; done";
  const lines = Array.from({ length: 400 }, (_, at) => `line ${at}\n`);
  assert.equal((await sandbox.commands.run(program)).stdout, lines.join(""));
  assert.ok(line.broken > 1, `${line.broken}`);
});

test("a stream that breaks again and again is whole", async () => {
  const fetch = breaking(700, 40);
  await using sandbox = await Sandbox.create({ template: "base", fetch });
  const program = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); sleep 0.005; done";
  const result = await sandbox.commands.run(program);
  const lines = Array.from({ length: 200 }, (_, at) => `line ${at}\n`);
  assert.equal(result.stdout, lines.join(""));
  assert.ok(fetch.broken > 1, `${fetch.broken}`);
});

test("characters that are split by a break are whole", async () => {
  const fetch = breaking(400, 1000);
  await using sandbox = await Sandbox.create({ template: "base", fetch });
  const program = `
import sys, time
for byte in "€ä𝄞".encode():
    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush(); time.sleep(0.02)`;
  // On a busy machine so much may come at once that nothing breaks in between.
  for (let tries = 0; fetch.broken === 0 && tries < 20; tries++) {
    let text = "";
    await sandbox.commands.run(["python3", "-c", program], {
      onStdout: (each) => {
        text += each;
      },
    });
    assert.equal(text, "€ä𝄞");
  }
  assert.ok(fetch.broken > 0);
});

test("a cell whose connection breaks runs once", async () => {
  const fetch = breaking(1, 3);
  await using sandbox = await Sandbox.create({ template: "python", fetch });
  await sandbox.runCode("runs = 0");
  await sandbox.runCode("runs += 1\nprint('x' * 100)");
  assert.equal((await sandbox.runCode("runs")).text, "1");
});

test("what is sent again after its answer was lost happens once", async () => {
  const isStart = (init: RequestInit | undefined, url: string) =>
    init?.method === "POST" && url.endsWith("/executions");
  await using sandbox = await Sandbox.create({ template: "base", fetch: losing(isStart, 3) });
  assert.equal((await sandbox.commands.run("echo x | tee -a log")).stdout, "x\n");
  assert.equal(await sandbox.files.read("log"), "x\n");
});

test("a creation whose answer was lost makes one sandbox", async () => {
  const labels = { once: crypto.randomUUID() };
  const fetch = losing((init, url) => init?.method === "POST" && url.endsWith("/sandboxes"), 2);
  await using sandbox = await Sandbox.create({ template: "base", labels, fetch });
  const found = [];
  for await (const each of Sandbox.list({ labels })) {
    found.push(each.id);
  }
  assert.deepEqual(found, [sandbox.id]);
});

test("an answer that breaks off is asked for again", async () => {
  const labels = { once: crypto.randomUUID() };
  let left = 2;
  const fetch: Fetch = async (input, init) => {
    const answer = await globalThis.fetch(input, init);
    if (left === 0 || init?.method !== "POST") {
      return answer;
    }
    left -= 1;
    const broken = new ReadableStream<Uint8Array>({
      pull: (controller) => controller.error(new TypeError("the connection was reset")),
    });
    await answer.arrayBuffer();
    return new Response(broken, { status: answer.status, headers: answer.headers });
  };
  await using sandbox = await Sandbox.create({ template: "base", labels, fetch });
  const found = [];
  for await (const each of Sandbox.list({ labels })) {
    found.push(each.id);
  }
  assert.deepEqual(found, [sandbox.id]);
});

test("what may not happen twice is not sent twice", async () => {
  const isRename = (_: RequestInit | undefined, url: string) => url.endsWith("/rename");
  await using sandbox = await Sandbox.create({ template: "base", fetch: losing(isRename, 1) });
  await sandbox.files.write("a", "x");
  await assert.rejects(sandbox.files.rename("a", "b"), Unavailable);
  assert.equal(await sandbox.files.read("b"), "x");
});

test("a server that is overrun is asked again when it says so", async () => {
  let asked = 0;
  const problem = {
    type: "urn:atoll:limit_exceeded",
    title: "Limit exceeded",
    status: 429,
    detail: "there are too many requests",
    code: "limit_exceeded",
    message: "there are too many requests",
    details: {},
    retryable: false,
    next_step: null,
  };
  const fetch: Fetch = async (input, init) => {
    asked += 1;
    if (asked < 3) {
      return Response.json(problem, { status: 429, headers: { "Retry-After": "0" } });
    }
    return globalThis.fetch(input, init);
  };
  const client = new Client({ fetch });
  await client.call("get", "/sandboxes");
  assert.equal(asked, 3);
  asked = 0;
  const once = new Client({ fetch, retries: 0 });
  await assert.rejects(once.call("get", "/sandboxes"), LimitExceeded);
});

test("a proxy's own words are told, and a passing failure is retried", async () => {
  let asked = 0;
  const fetch: Fetch = async (input, init) => {
    asked += 1;
    return asked === 1
      ? new Response("<h1>bad gateway</h1>", { status: 502 })
      : globalThis.fetch(input, init);
  };
  await new Client({ fetch }).call("get", "/sandboxes");
  assert.equal(asked, 2);
  const teapot: Fetch = async () => new Response("short and stout", { status: 418 });
  await assert.rejects(
    new Client({ fetch: teapot }).call("get", "/sandboxes"),
    /answered 418.*short and stout/,
  );
});
