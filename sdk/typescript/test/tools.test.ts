import assert from "node:assert/strict";
import { test } from "node:test";

import {
  createSandboxTools,
  DockerSandbox,
  SandboxError,
  SandboxPathError,
  type SandboxTool,
  type SandboxToolName,
  SandboxToolPolicyError,
  type SandboxToolsOptions,
} from "../src/docker/index.ts";

async function withTools(
  options: SandboxToolsOptions,
  check: (tools: Record<SandboxToolName, SandboxTool>) => Promise<void>,
): Promise<void> {
  await using session = await new DockerSandbox({ image: "base" }).createSession();
  const tools = createSandboxTools(session, options);
  await check(Object.fromEntries(tools.map((tool) => [tool.name, tool])) as never);
}

test("four tools are there if nothing is said, and those that are named otherwise", async () => {
  await using session = await new DockerSandbox({ image: "base" }).createSession();
  const names = (options?: SandboxToolsOptions) =>
    createSandboxTools(session, options).map((tool) => tool.name);
  assert.deepEqual(names(), ["exec_command", "read_file", "write_file", "list_files"]);
  assert.deepEqual(names({ include: ["read_file", "exec_command"] }), [
    "read_file",
    "exec_command",
  ]);
  assert.deepEqual(names({ allow: ["list_ports"], include: ["read_file"] }), ["list_ports"]);
  assert.throws(() => names({ allow: ["format_disk" as SandboxToolName] }), SandboxToolPolicyError);
  for (const tool of createSandboxTools(session)) {
    assert.equal(tool.definition().name, tool.name);
    assert.equal(tool.parameters.type, "object");
    assert.ok(tool.description.length > 10);
  }
});

test("tools write, read, list and run", () =>
  withTools({}, async (tools) => {
    assert.equal(
      await tools.write_file.execute({ path: "a/x.txt", content: "grün\n" }),
      "wrote 6 bytes to a/x.txt",
    );
    assert.equal(await tools.read_file.execute({ path: "a/x.txt" }), "grün\n");
    assert.equal(await tools.list_files.call({ path: "a" }), "file\t6\ta/x.txt");
    const run = { command: "sh", args: ["-c", "cat; echo oops >&2; exit 2"], input: "in" };
    assert.equal(
      await tools.exec_command.execute(run),
      "exit_code: 2\n\nstdout:\nin\n\nstderr:\noops\n",
    );
    const late = await tools.exec_command.execute({
      command: "sleep",
      args: ["60"],
      timeoutMs: 200,
    });
    assert.match(late, /^exit_code: 124\n\ntimed_out: true/);
    await assert.rejects(tools.read_file.execute({ path: "../x" }), SandboxPathError);
  }));

test("what a model sends is checked", () =>
  withTools({}, async ({ exec_command: exec, read_file: read }) => {
    const wrong: unknown[] = [
      null,
      [],
      {},
      { command: "" },
      { command: 1 },
      { command: "x", args: "y" },
      { command: "x", args: [1] },
      { command: "x", env: { A: 1 } },
      { command: "x", timeoutMs: 0 },
      { command: "x", timeoutMs: 300_001 },
      { command: "x", timeoutMs: 1.5 },
      { command: "x", shell: true },
      { command: "x", __proto__: null, constructor: "y" },
    ];
    for (const input of wrong) {
      await assert.rejects(exec.execute(input), SandboxError, JSON.stringify(input));
    }
    await assert.rejects(read.execute({ path: "x", lineCount: 10_001 }), SandboxError);
  }));

test("commands are allowed and blocked by policy", async () => {
  const exec = { allowedCommands: ["echo", "sleep"], maxTimeoutMs: 1000 };
  await withTools({ exec }, async ({ exec_command: run }) => {
    assert.match(await run.execute({ command: "echo", args: ["x"] }), /stdout:\nx/);
    await assert.rejects(run.execute({ command: "sh" }), SandboxToolPolicyError);
    await assert.rejects(run.execute({ command: "/bin/echo" }), SandboxToolPolicyError);
    await assert.rejects(run.execute({ command: "echo", timeoutMs: 1001 }), SandboxToolPolicyError);
  });
  const options: SandboxToolsOptions = {
    allow: ["exec_command", "start_process"],
    exec: { blockedCommands: ["rm"] },
    execTimeoutMs: 300,
  };
  await withTools(options, async ({ exec_command: run, start_process: start }) => {
    for (const command of ["rm", "/bin/rm", "./rm"]) {
      await assert.rejects(run.execute({ command }), SandboxToolPolicyError);
      await assert.rejects(start.execute({ command }), SandboxToolPolicyError);
    }
    assert.match(await run.execute({ command: "sleep", args: ["60"] }), /timed_out: true/);
  });
});

test("sizes are held to by policy", () =>
  withTools(
    {
      writeFile: { maxBytes: 4 },
      readFile: { defaultLineCount: 1, maxLineCount: 2, maxBytes: 100 },
    },
    async ({ write_file: write, read_file: read, exec_command: run }) => {
      await assert.rejects(write.execute({ path: "x", content: "üüü" }), SandboxToolPolicyError);
      await run.execute({ command: "sh", args: ["-c", "printf 'a\\nb\\nc\\n' > x"] });
      assert.match(
        await read.execute({ path: "x" }),
        /^a\n\n?\[lines 1 to 1, cut by lines; go on with startLine 2\]$/,
      );
      assert.equal(await read.execute({ path: "x", startLine: 3 }), "c\n");
      await assert.rejects(read.execute({ path: "x", lineCount: 3 }), SandboxToolPolicyError);
    },
  ));

test("policies that cannot be are refused when the tools are made", async () => {
  await using session = await new DockerSandbox({ image: "base" }).createSession();
  const wrong: SandboxToolsOptions[] = [
    { exec: { maxTimeoutMs: 0 } },
    { exec: { maxTimeoutMs: 300_001 } },
    { exec: { maxTimeoutMs: 100, defaultTimeoutMs: 101 } },
    { execTimeoutMs: 1.5 },
    { readFile: { maxLineCount: 10_001 } },
    { readFile: { maxBytes: (1 << 20) + 1 } },
    { writeFile: { maxBytes: -1 } },
    { process: { maxLogBytes: (1 << 20) + 1 } },
    { process: { maxWaitTimeoutMs: 10, defaultWaitTimeoutMs: 11 } },
    { process: { stopGracePeriodMs: -1 } },
  ];
  for (const options of wrong) {
    assert.throws(
      () => createSandboxTools(session, options),
      SandboxToolPolicyError,
      JSON.stringify(options),
    );
  }
});

test("tools start, list, read and stop processes", () =>
  withTools(
    {
      allow: [
        "start_process",
        "list_processes",
        "read_process_logs",
        "stop_process",
        "list_ports",
        "wait_for_port",
      ],
      process: { maxLogBytes: 100 },
    },
    async (tools) => {
      assert.equal(await tools.list_processes.execute({}), "(none)");
      const script = "echo ready; exec sleep 1000";
      const told = await tools.start_process.execute({ command: "sh", args: ["-c", script] });
      const processId = /process_id: (\S+)\nstatus: running/.exec(told)?.[1] ?? "";
      assert.match(await tools.list_processes.execute({}), new RegExp(processId));
      while (!(await tools.read_process_logs.execute({ processId })).includes("stdout:\nready")) {}
      await assert.rejects(
        tools.read_process_logs.execute({ processId, tailBytes: 101 }),
        SandboxToolPolicyError,
      );
      assert.match(await tools.stop_process.execute({ processId }), /status: stopped/);
      assert.equal(await tools.list_ports.execute({}), "(none)");
      await assert.rejects(tools.wait_for_port.execute({ containerPort: 80 }), /not published/);
    },
  ));
