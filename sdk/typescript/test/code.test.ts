import assert from "node:assert/strict";
import { test } from "node:test";

import { CommandFailed, type ExecutionEvent } from "../src/index.ts";
import { inSandbox, until } from "./fixtures.ts";

const python = { template: "python" };

test(
  "variables stay from cell to cell",
  inSandbox(async (sandbox) => {
    await sandbox.runCode("total = 41");
    const cell = await sandbox.runCode("print('so', total)\ntotal + 1");
    assert.deepEqual(
      [cell.stdout, cell.text, cell.status, cell.exitCode],
      ["so 41\n", "42", "ok", 0],
    );
    assert.equal(cell.executionCount, 2);
    assert.ok(cell.ok && cell.error === null && cell.durationMs > 0);
  }, python),
);

test(
  "values come in every form that they have",
  inSandbox(async (sandbox) => {
    const shown: unknown[] = [];
    const cell = await sandbox.runCode(
      "display({'text/markdown': '**bold**'}, raw=True)\n{'answer': [42, None]}",
      { onResult: (bundle) => shown.push(bundle.isMain) },
    );
    assert.deepEqual(cell.json, { answer: [42, null] });
    assert.deepEqual([cell.markdown, cell.html, cell.form("no/such")], ["**bold**", null, null]);
    assert.deepEqual(
      cell.results.map((each) => each.isMain),
      [false, true],
    );
    assert.deepEqual(shown, [false, true]);
  }, python),
);

test(
  "an exception is a result",
  inSandbox(async (sandbox) => {
    const told: string[] = [];
    const cell = await sandbox.runCode("1 / 0", { onError: (error) => told.push(error.name) });
    assert.equal(cell.error?.name, "ZeroDivisionError");
    assert.match(cell.error.traceback.join("\n"), /1 \/ 0/);
    assert.deepEqual([cell.status, cell.exitCode, told], ["error", 1, ["ZeroDivisionError"]]);
    assert.throws(() => cell.check(), CommandFailed);
  }, python),
);

test(
  "events come while the code runs",
  inSandbox(async (sandbox) => {
    const events: ExecutionEvent[] = [];
    const code = "import sys\nprint('a')\nsys.stderr.write('b')\n7";
    for await (const event of sandbox.streamCode(code)) {
      events.push(event);
    }
    assert.deepEqual(
      events.map((event) => event.seq),
      events.map((_, at) => at),
    );
    assert.deepEqual(
      new Set(events.map((event) => event.type)),
      new Set(["stdout", "stderr", "result", "end"]),
    );
    assert.equal(events.at(-1)?.type, "end");
  }, python),
);

test(
  "a timeout interrupts, and variables stay",
  inSandbox(async (sandbox) => {
    await sandbox.runCode("kept = 1");
    const cell = await sandbox.runCode("while True: pass", { timeoutMs: 300 });
    assert.deepEqual([cell.status, cell.exitCode], ["timed_out", 124]);
    assert.equal((await sandbox.runCode("kept")).text, "1");
  }, python),
);

test(
  "aborting interrupts, and variables stay",
  inSandbox(async (sandbox) => {
    const gate = new AbortController();
    const running = sandbox.runCode("kept = 2\nprint('on', flush=True)\nwhile True: pass", {
      signal: gate.signal,
      onStdout: () => gate.abort(),
    });
    await assert.rejects(running, { name: "AbortError" });
    assert.equal((await sandbox.runCode("kept")).text, "2");
  }, python),
);

test(
  "leaving a stream early interrupts",
  inSandbox(async (sandbox) => {
    for await (const _ of sandbox.streamCode("print('on', flush=True)\nwhile True: pass")) {
      break;
    }
    await until(async () => (await sandbox.kernels.list()).every((kernel) => !kernel.is_busy));
    assert.equal((await sandbox.runCode("1")).text, "1");
  }, python),
);

test(
  "code asks for lines, and finds the end of input without anybody to ask",
  inSandbox(async (sandbox) => {
    const asked: [string, boolean][] = [];
    const cell = await sandbox.runCode("input('name? ') + input()", {
      onInput: (prompt, isSecret) => {
        asked.push([prompt, isSecret]);
        return asked.length === 1 ? "Ada" : "!";
      },
    });
    assert.equal(cell.text, "'Ada!'");
    assert.deepEqual(asked[0], ["name? ", false]);
    assert.equal((await sandbox.runCode("input()")).ok, false);
  }, python),
);

test(
  "bytes that are no text come as they are",
  inSandbox(async (sandbox) => {
    const code = "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stdout.flush()";
    const cell = await sandbox.runCode(code);
    assert.deepEqual(
      cell.stdoutBytes,
      Uint8Array.from({ length: 256 }, (_, byte) => byte),
    );
  }, python),
);

test(
  "files that a cell changed are told",
  inSandbox(async (sandbox) => {
    const cell = await sandbox.runCode("open('made.txt', 'w').write('x')", { trackFiles: true });
    assert.deepEqual(cell.filesChanged, ["made.txt"]);
    assert.equal((await sandbox.runCode("1")).filesChanged, null);
  }, python),
);

test(
  "other languages have sessions of their own",
  inSandbox(async (sandbox) => {
    await sandbox.runCode("greeting='from a shell'", { language: "bash" });
    const cell = await sandbox.runCode('echo "$greeting"; (exit 3)', { language: "bash" });
    assert.deepEqual([cell.stdout, cell.exitCode], ["from a shell\n", 3]);
  }, python),
);

test(
  "kernels have variables of their own",
  inSandbox(async (sandbox) => {
    await sandbox.runCode("x = 1");
    await using kernel = await sandbox.kernels.open("python", { env: { FROM: "outside" } });
    assert.equal((await kernel.runCode("import os; os.environ['FROM']")).text, "'outside'");
    assert.equal((await kernel.runCode("x")).error?.name, "NameError");
    assert.equal((await sandbox.kernels.list()).length, 2);

    await kernel.runCode("some_long_name = 3");
    const found = await kernel.complete("some_lo");
    assert.deepEqual([found.matches, found.start, found.end], [["some_long_name"], 0, 7]);
    assert.match(JSON.stringify(await kernel.inspect("some_long_name")), /int/);
    assert.equal(await kernel.inspect("nosuchname"), null);

    const looping = kernel.runCode("print('on', flush=True)\nwhile True: pass", {
      onStdout: () => kernel.interrupt(),
    });
    assert.equal((await looping).status, "interrupted");
    await kernel.restart();
    assert.equal((await kernel.runCode("some_long_name")).error?.name, "NameError");
    await sandbox.kernels.restart();
    assert.equal((await sandbox.runCode("x")).error?.name, "NameError");
  }, python),
);
