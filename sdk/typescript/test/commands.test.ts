import assert from "node:assert/strict";
import { test } from "node:test";

import { CommandFailed, Conflict, InvalidRequest } from "../src/index.ts";
import { HOSTILE, inSandbox, onceItPrints, until } from "./fixtures.ts";

test(
  "a command's result tells all about it",
  inSandbox(async (sandbox) => {
    const result = await sandbox.commands.run("echo out; echo err >&2; exit 3");
    assert.deepEqual([result.stdout, result.stderr], ["out\n", "err\n"]);
    assert.deepEqual([result.exitCode, result.ok, result.shellCode], [3, false, 3]);
    assert.deepEqual([result.reason, result.timedOut, result.aborted], ["exited", false, false]);
    assert.ok(result.durationMs > 0);
    assert.throws(() => result.check(), CommandFailed);
    await assert.rejects(sandbox.commands.run("exit 3", { check: true }), /exited with 3/);
  }),
);

test(
  "arguments reach a program as they are",
  inSandbox(async (sandbox) => {
    const words = ["a b", "$HOME", "'", '"', "*", "\\", "ü", ""];
    const result = await sandbox.commands.run(["printf", "%s\\n", ...words]);
    assert.deepEqual(result.stdout.split("\n").slice(0, -1), words);
  }),
);

test(
  "directory, variables and input are those that were given",
  inSandbox(async (sandbox) => {
    await sandbox.files.makeDir("deep/er");
    const result = await sandbox.commands.run("pwd; echo $COLOUR; cat", {
      cwd: "deep/er",
      env: { COLOUR: "grün" },
      stdin: "typed",
    });
    assert.equal(result.stdout, "/workspace/deep/er\ngrün\ntyped");
    assert.equal((await sandbox.commands.run("cat")).stdout, "");
  }),
);

test(
  "bytes come and go as they are",
  inSandbox(async (sandbox) => {
    for (const [what, bytes] of Object.entries(HOSTILE)) {
      const heard: number[] = [];
      const result = await sandbox.commands.run("cat | tee /dev/stderr", {
        stdin: bytes,
        onStdout: (_, chunk) => heard.push(...chunk),
      });
      assert.deepEqual(result.stdoutBytes, bytes, what);
      assert.deepEqual(result.stderrBytes, bytes, what);
      assert.deepEqual(Uint8Array.from(heard), bytes, what);
      const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
      assert.equal(result.stdout, text, what);
    }
  }),
);

test(
  "texts of pieces are the text of the whole, wherever bytes are split",
  inSandbox(async (sandbox) => {
    const line = "€ä𝄞x";
    // Each byte waits until the one before has come: a slow reader would get several at once.
    const program = `
import os, sys, time
for number, byte in enumerate(${JSON.stringify(line)}.encode() + b"\\xe2\\x82"):
    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush()
    while not os.path.exists(str(number)): time.sleep(0.01)`;
    let text = "";
    let pieces = 0;
    for await (const event of sandbox.commands.stream(["python3", "-c", program])) {
      if (event.type === "stdout") {
        text += event.text;
        await sandbox.files.write(`${pieces}`, "");
        pieces += 1;
      }
    }
    assert.equal(text, `${line}\ufffd`);
    assert.ok(pieces > 3);
  }),
);

test(
  "much input and much output pass whole",
  inSandbox(async (sandbox) => {
    const data = new Uint8Array(5_000_000).map((_, at) => (at * 7919) % 251);
    const result = await sandbox.commands.run("cat", { stdin: data, maxOutputBytes: 10_000_000 });
    assert.equal(Buffer.compare(result.stdoutBytes, data), 0);
    assert.equal(result.stdoutTruncated, false);
    const cut = await sandbox.commands.run("cat", { stdin: data, maxOutputBytes: 1000 });
    assert.equal(cut.stdoutTruncated, true);
    assert.deepEqual(cut.stdoutBytes, data.subarray(0, 1000));
  }),
);

test(
  "a program that does not read its long input is no failure",
  inSandbox(async (sandbox) => {
    const result = await sandbox.commands.run("head -c 3", { stdin: "abc".repeat(1_000_000) });
    assert.deepEqual([result.stdout, result.exitCode], ["abc", 0]);
  }),
);

test(
  "a timeout is a result",
  inSandbox(async (sandbox) => {
    const result = await onceItPrints((timeoutMs) =>
      sandbox.commands.run("echo first; sleep 1000", { timeoutMs }),
    );
    assert.deepEqual([result.timedOut, result.exitCode, result.shellCode], [true, null, 124]);
    assert.equal(result.stdout, "first\n");
  }),
);

test(
  "a program that is missing exits with 127",
  inSandbox(async (sandbox) => {
    assert.equal((await sandbox.commands.run(["nosuchprogram"])).exitCode, 127);
  }),
);

test(
  "aborting ends the command and all that it started",
  inSandbox(async (sandbox) => {
    const gate = new AbortController();
    const running = sandbox.commands.run("sleep 1000 & echo $! > pid; echo ready; wait", {
      signal: gate.signal,
      onStdout: () => gate.abort(new Error("enough")),
    });
    await assert.rejects(running, /enough/);
    await until(async () => {
      return (await sandbox.commands.run("kill -0 $(cat pid)")).exitCode !== 0;
    });
    await assert.rejects(sandbox.commands.run("true", { signal: gate.signal }), /enough/);
  }),
);

test(
  "leaving a stream early ends the command",
  inSandbox(async (sandbox) => {
    for await (const event of sandbox.commands.stream(
      "echo $$ > pid; echo ready; exec sleep 1000",
    )) {
      assert.equal(event.type, "stdout");
      break;
    }
    await until(async () => {
      return (await sandbox.commands.run("kill -0 $(cat pid)")).exitCode !== 0;
    });
  }),
);

test(
  "a callback that fails ends the command, and is told",
  inSandbox(async (sandbox) => {
    const failing = sandbox.commands.run("echo $$ > pid; echo x; exec sleep 1000", {
      onStdout: () => {
        throw new RangeError("cannot take this");
      },
    });
    await assert.rejects(failing, RangeError);
    await until(async () => (await sandbox.commands.run("kill -0 $(cat pid)")).exitCode !== 0);
  }),
);

test(
  "a process goes on by itself",
  inSandbox(async (sandbox) => {
    const process = await sandbox.commands.start("while read line; do echo got $line; done", {
      keepStdin: true,
      background: true,
    });
    assert.equal((await sandbox.commands.list())[0]?.id, process.id);
    await process.write("one\n");
    await process.write(new TextEncoder().encode("two\n"), { close: true });
    const texts = [];
    for await (const event of process) {
      texts.push(event.type === "stdout" ? event.text : event.type);
    }
    assert.equal(texts.slice(0, -1).join(""), "got one\ngot two\n");
    assert.equal(texts.at(-1), "end");

    const again = sandbox.commands.connect(process.id);
    assert.equal((await again.wait()).stdout, "got one\ngot two\n");
    assert.equal((await again.info()).state, "ended");
    const tail = await again.readTail("stdout", { tailBytes: 4 });
    assert.deepEqual(
      [new TextDecoder().decode(tail.bytes), tail.totalBytes, tail.truncated],
      ["two\n", 16, true],
    );
  }),
);

test(
  "processes are signalled, stopped and killed",
  inSandbox(async (sandbox) => {
    const polite = await sandbox.commands.start(
      "trap 'echo bye; exit 5' TERM; echo on; while :; do sleep 0.05; done",
    );
    for await (const event of polite) {
      if (event.type === "stdout") {
        break;
      }
    }
    assert.equal((await polite.stop()).outcome.exit_code, 5);
    assert.equal((await polite.wait()).stdout, "on\nbye\n");

    const killed = await sandbox.commands.start("sleep 1000");
    await killed.kill();
    assert.equal((await killed.wait()).exitCode, null);

    const signalled = await sandbox.commands.start(["sleep", "1000"]);
    await signalled.signal(15);
    assert.equal((await signalled.wait()).signal, 15);
  }),
);

test(
  "text that is half a character is refused before it is sent",
  inSandbox(async (sandbox) => {
    await assert.rejects(sandbox.commands.run("cat", { stdin: "\ud800" }), InvalidRequest);
    await assert.rejects(sandbox.files.write("x", "a\udfff"), InvalidRequest);
    await assert.rejects(sandbox.files.write("\ud800", "a"), InvalidRequest);
  }),
);

test(
  "input for what has ended is refused",
  inSandbox(async (sandbox) => {
    const process = await sandbox.commands.start("true", { keepStdin: true });
    await process.wait();
    await assert.rejects(
      process.write("late"),
      (error) => error instanceof Conflict || error instanceof Error,
    );
  }),
);
