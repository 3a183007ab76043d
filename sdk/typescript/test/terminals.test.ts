import assert from "node:assert/strict";
import { test } from "node:test";

import { type At, Sandbox, type Terminal } from "../src/index.ts";

// Node 20 has no WebSocket of its own: there both are plain requests.
const ways: Readonly<Record<string, At>> = {
  "the platform's way": {},
  "plain requests": { WebSocket: null },
};

async function readUntil(terminal: Terminal, wanted: string): Promise<string> {
  let shown = "";
  for await (const event of terminal) {
    if (event.type === "stdout") {
      shown += event.text;
      if (shown.includes(wanted)) {
        return shown;
      }
    }
  }
  assert.fail(`the terminal ended without ${wanted}: ${shown}`);
}

for (const [way, at] of Object.entries(ways)) {
  test(`a terminal shows what is typed and printed, by ${way}`, async () => {
    await using sandbox = await Sandbox.create({ template: "base", ...at });
    await using terminal = await sandbox.terminals.open({
      command: ["sh"],
      rows: 30,
      columns: 90,
      env: { PS1: "> " },
    });
    await terminal.write("stty size\n");
    await terminal.resize(40, 100);
    await terminal.write("stty size; echo gr\\303\\274n; exit 3\n");
    let shown = "";
    let last = "";
    for await (const event of terminal) {
      shown += event.type === "stdout" ? event.text : "";
      last = event.type;
    }
    assert.match(shown, /40 100/);
    assert.equal(last, "end");
    assert.equal((await terminal.wait()).outcome.exit_code, 3);
  });

  test(`a terminal is joined again from its beginning, by ${way}`, async () => {
    await using sandbox = await Sandbox.create({ template: "base", ...at });
    const terminal = await sandbox.terminals.open({
      command: "echo first; read line; echo got $line",
    });
    await readUntil(terminal, "first");
    const again = await sandbox.terminals.connect(terminal.id);
    await again.write("x\n");
    const shown = await readUntil(again, "got x");
    assert.match(shown, /^first/);
  });
}
