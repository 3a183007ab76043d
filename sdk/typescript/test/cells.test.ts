import assert from "node:assert/strict";
import { test } from "node:test";

import { type At, InvalidRequest, Sandbox } from "../src/index.ts";
import { until } from "./fixtures.ts";

// Node 20 has no WebSocket of its own: there both are plain requests.
const ways: Readonly<Record<string, At>> = {
  "the platform's way": {},
  "plain requests": { WebSocket: null },
};

/** Sockets that break when they have given their first message. */
class Breaking extends (globalThis.WebSocket ?? class {}) {
  static broken = 0;

  constructor(...given: ConstructorParameters<typeof globalThis.WebSocket>) {
    super(...given);
    this.addEventListener("message", () => {
      Breaking.broken += 1;
      this.close();
    });
  }
}

for (const [way, at] of Object.entries(ways)) {
  test(`many cells go over one connection, by ${way}`, async () => {
    await using sandbox = await Sandbox.create(at);
    await using cells = sandbox.openCells();
    await cells.runCode("seen = []");
    const all = Array.from({ length: 20 }, (_, at) =>
      cells.runCode(`seen.append(${at})\nlen(seen)`),
    );
    const texts = (await Promise.all(all)).map((cell) => cell.text);
    assert.deepEqual(
      texts,
      Array.from({ length: 20 }, (_, at) => `${at + 1}`),
    );
    const order = await cells.runCode("seen == sorted(seen)");
    assert.equal(order.text, "True");
    assert.equal((await cells.runCode("1 / 0")).error?.name, "ZeroDivisionError");
    assert.equal((await cells.runCode("input('? ')", { onInput: () => "Ada" })).text, "'Ada'");
    await assert.rejects(cells.runCode("1", { language: "cobol" }), InvalidRequest);
    const code = "import sys; sys.stdout.buffer.write(bytes(range(256)))";
    assert.equal((await cells.runCode(code)).stdoutBytes.length, 256);
  });

  test(`aborting and leaving interrupt, and the next cell runs, by ${way}`, async () => {
    await using sandbox = await Sandbox.create(at);
    await using cells = sandbox.openCells();
    const loop = "kept = 1\nprint('on', flush=True)\nwhile True: pass";
    const gate = new AbortController();
    const looping = cells.runCode(loop, { signal: gate.signal, onStdout: () => gate.abort() });
    const next = cells.runCode("kept");
    await assert.rejects(looping, { name: "AbortError" });
    assert.equal((await next).text, "1");
    for await (const _ of cells.streamCode(loop)) {
      break;
    }
    assert.equal((await cells.runCode("kept + 1")).text, "2");
    const other = new AbortController();
    const silent = cells.runCode("kept = 5\nopen('begun', 'w').close()\nwhile True: pass", {
      signal: other.signal,
    });
    await until(() => sandbox.files.exists("begun"));
    other.abort();
    await assert.rejects(silent, { name: "AbortError" });
    assert.equal((await cells.runCode("kept")).text, "5");
  });
}

const skip = globalThis.WebSocket === undefined && "this platform has no WebSocket";

test("a cell whose connection breaks runs once, and its output is whole", { skip }, async () => {
  await using sandbox = await Sandbox.create({
    WebSocket: Breaking as typeof globalThis.WebSocket,
  });
  await using cells = sandbox.openCells();
  const code = `
import time
runs = globals().get("runs", 0) + 1
for i in range(20):
    print(i, flush=True)
    time.sleep(0.01)
runs`;
  const cell = await cells.runCode(code);
  assert.equal(cell.text, "1");
  assert.equal(cell.stdout, Array.from({ length: 20 }, (_, at) => `${at}\n`).join(""));
  assert.ok(Breaking.broken > 0);
});
