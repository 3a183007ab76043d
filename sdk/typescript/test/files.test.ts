import assert from "node:assert/strict";
import { test } from "node:test";

import { Conflict, type FileChange, InvalidRequest, NotFound } from "../src/index.ts";
import { HOSTILE, inSandbox } from "./fixtures.ts";

test(
  "files hold what was written, whatever it is",
  inSandbox(async ({ files }) => {
    for (const [what, bytes] of Object.entries(HOSTILE)) {
      await files.write(`hostile/${what}`, bytes);
      assert.deepEqual(await files.readBytes(`hostile/${what}`), bytes, what);
    }
    await files.write("text", "\ufeffgrün\r\n");
    assert.equal(await files.read("text"), "\ufeffgrün\r\n");
    await assert.rejects(files.read("hostile/every byte"), InvalidRequest);
    await files.write("from blob", new Blob(["a", "b"]));
    assert.equal(await files.read("from blob"), "ab");
  }),
);

test(
  "names are taken as they are",
  inSandbox(async ({ files, commands }) => {
    for (const name of [
      "a b",
      "ä€",
      "q?x=1#y",
      "100%",
      "%2e%2e",
      "it's",
      "back\\slash",

      "...",
    ]) {
      await files.write(name, name);
      assert.equal(await files.read(name), name);
      assert.equal((await commands.run(["cat", name])).stdout, name);
    }
  }),
);

test(
  "paths that lead elsewhere are refused",
  inSandbox(async ({ files }) => {
    await assert.rejects(files.read("../../etc/passwd"), InvalidRequest);
    await assert.rejects(files.write("a/../../x", "x"), InvalidRequest);
    await assert.rejects(files.list("../.."), InvalidRequest);
    await assert.rejects(files.read("nosuch"), NotFound);
    assert.equal(await files.exists("nosuch"), false);
  }),
);

test(
  "parts of files, and streams of any size",
  inSandbox(async ({ files }) => {
    const data = new Uint8Array(3_000_000).map((_, at) => (at * 31) % 256);
    let sent = 0;
    const stream = new ReadableStream<Uint8Array>({
      pull(controller) {
        controller.enqueue(data.slice(sent, sent + 100_000));
        sent += 100_000;
        if (sent >= data.length) {
          controller.close();
        }
      },
    });
    const info = await files.write("large", stream, { mode: 0o600 });
    assert.deepEqual([info.size, info.mode & 0o777], [data.length, 0o600]);
    let at = 0;
    for await (const chunk of files.readChunks("large")) {
      assert.equal(Buffer.compare(chunk, data.subarray(at, at + chunk.length)), 0);
      at += chunk.length;
    }
    assert.equal(at, data.length);
    const part = await files.readBytes("large", { offset: 1_000_000, length: 10 });
    assert.deepEqual(part, data.slice(1_000_000, 1_000_010));
  }),
);

test(
  "directories are listed, made, renamed and removed",
  inSandbox(async ({ files, commands }) => {
    await files.makeDir("a/b");
    await files.write("a/file", "x");
    await commands.run("ln -s file a/link");
    const found = await files.list("a");
    assert.deepEqual(
      found.map(({ name, kind }) => [name, kind]),
      [
        ["b", "directory"],
        ["file", "file"],
        ["link", "symlink"],
      ],
    );
    await assert.rejects(files.read("a"), /is a directory/);
    await files.rename("a/file", "moved");
    assert.equal(await files.read("moved"), "x");
    await assert.rejects(files.remove("a"));
    await files.remove("a", { recursive: true });
    assert.equal(await files.exists("a"), false);
  }),
);

test(
  "a version is replaced only by who knows it",
  inSandbox(async ({ files }) => {
    await files.write("shared", "one", { ifNew: true });
    await assert.rejects(files.write("shared", "two", { ifNew: true }), Conflict);
    const version = await files.version("shared");
    await files.write("shared", "three", { ifMatch: version });
    await assert.rejects(files.write("shared", "four", { ifMatch: version }), Conflict);
    assert.equal(await files.read("shared"), "three");
  }),
);

test(
  "pages and searches",
  inSandbox(async ({ files }) => {
    await files.write("src/log.txt", "alpha\nbeta\ngamma\n");
    const page = await files.readPage("src/log.txt", { startLine: 2, lines: 1 });
    assert.deepEqual(
      [page.text, page.start_line, page.next_line, page.cut_by],
      ["beta\n", 2, 3, "lines"],
    );
    const found = await files.search("^g.mma", { path: "src" });
    assert.deepEqual(
      found.matches.map(({ path, line }) => [path, line]),
      [["src/log.txt", 3]],
    );
    assert.deepEqual(
      (await files.searchNames("*.txt")).map(({ path }) => path),
      ["src/log.txt"],
    );
  }),
);

test(
  "whole trees go and come as archives",
  inSandbox(async ({ files }) => {
    await files.write("tree/deep/a", "1");
    await files.write("tree/b", Uint8Array.of(0xff));
    const chunks: Uint8Array[] = [];
    for await (const chunk of files.readArchive("tree")) {
      chunks.push(chunk);
    }
    const told = await files.writeArchive(Buffer.concat(chunks), "copy");
    assert.equal(told.files, 2);
    const copied = (await files.searchNames("*", { path: "copy" })).map(({ path }) => path);
    assert.ok(
      copied.some((path) => path.endsWith("deep/a")),
      copied.join(),
    );
  }),
);

test(
  "changes are told until somebody leaves",
  inSandbox(async ({ files }) => {
    const seen: FileChange[] = [];
    for await (const change of files.watch(".", { onReady: () => files.write("new", "x") })) {
      seen.push(change);
      if (change.type === "created") {
        await files.remove("new");
      }
      if (change.type === "removed") {
        break;
      }
    }
    assert.deepEqual(seen.at(0)?.file.path, "new");
    const gate = new AbortController();
    const watching = files.watch(".", { onReady: () => gate.abort(), signal: gate.signal }).next();
    await assert.rejects(watching, { name: "AbortError" });
  }),
);

test(
  "reading is aborted",
  inSandbox(async ({ files }) => {
    await files.write("x", "x");
    await assert.rejects(files.read("x", { signal: AbortSignal.abort() }), { name: "AbortError" });
  }),
);
