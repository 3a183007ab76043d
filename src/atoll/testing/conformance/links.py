"""The workspace as hostile code prepares it: links, loops, FIFOs and deep trees."""

from __future__ import annotations

import pytest

from atoll.engines.contract import NewFile, Sandbox
from atoll.errors import AtollError, InvalidRequest, NotFound
from atoll.model.file import FileInfo, FileKind
from atoll.testing.conformance.running import Conformance, read_all, run_line, soon

# Links that lead out of the workspace, with a file that is there at their end.
OUTWARD = ["/tmp", "../tmp", "../../../tmp", "/workspace/../tmp", "./../tmp"]


class LinkConformance(Conformance):
    """Links are resolved inside the sandbox only and never lead out of the workspace."""

    async def test_a_link_inside_is_followed(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("d/real", b"content")
        assert (await run_line(sandbox, "ln -s d/real link && ln -s d directory")).code == 0
        assert await read_all(sandbox, "link") == b"content"
        assert await read_all(sandbox, "directory/real") == b"content"
        assert [entry.name for entry in await sandbox.workspace.list("directory")] == ["real"]

    async def test_a_link_is_described_itself(self, sandbox: Sandbox) -> None:
        await run_line(sandbox, "echo x > real; ln -s real link; ln -s nowhere broken")
        for name in ("link", "broken"):
            assert (await sandbox.workspace.stat(name)).kind is FileKind.SYMLINK
        kinds = {entry.name: entry.kind for entry in await sandbox.workspace.list()}
        assert kinds == {
            "broken": FileKind.SYMLINK,
            "link": FileKind.SYMLINK,
            "real": FileKind.FILE,
        }

    async def test_a_link_is_removed_renamed_and_replaced_itself(self, sandbox: Sandbox) -> None:
        workspace = sandbox.workspace
        await run_line(sandbox, "echo x > real; ln -s real a; ln -s real b; ln -s real c")
        await workspace.remove("a", recursive=True)
        await workspace.rename("b", "moved")
        await workspace.write("c", b"new")
        assert (await workspace.stat("moved")).kind is FileKind.SYMLINK
        assert (await workspace.stat("c")).kind is FileKind.FILE
        assert await read_all(sandbox, "real") == b"x\n"

    @pytest.mark.parametrize("target", OUTWARD)
    async def test_a_link_does_not_lead_out(self, sandbox: Sandbox, target: str) -> None:
        workspace = sandbox.workspace
        await run_line(sandbox, f"echo secret > /tmp/secret; ln -s {target} out")
        await run_line(sandbox, f"ln -s {target}/secret file")
        await workspace.write("mine", b"mine")
        for call in (
            lambda: read_all(sandbox, "out/secret"),
            lambda: read_all(sandbox, "file"),
            lambda: workspace.list("out"),
            lambda: workspace.stat("out/secret"),
            lambda: workspace.write("out/new", b"x"),
            lambda: workspace.write("out/secret", b"x"),
            lambda: workspace.make_dir("out/directory"),
            lambda: workspace.remove("out/secret"),
            lambda: workspace.rename("out/secret", "stolen"),
            lambda: workspace.rename("mine", "out/mine"),
            lambda: workspace.write_many([NewFile("out/new", b"x")]),
            lambda: workspace.write_many([NewFile("out/new", None)]),
            lambda: _read_first(sandbox, "out/secret"),
            lambda: _read_first(sandbox, "file"),
        ):
            with soon(), pytest.raises((InvalidRequest, NotFound)):
                await call()
        await workspace.write_many([NewFile("file", b"replaced")])
        await workspace.remove("out", recursive=True)
        outcome = await run_line(sandbox, "cat /tmp/secret; test -e /tmp/new || test -e /tmp/mine")
        assert (outcome.stdout, outcome.code) == (b"secret\n", 1)

    async def test_a_recursive_removal_stays_inside(self, sandbox: Sandbox) -> None:
        await run_line(
            sandbox, "mkdir /tmp/kept d; echo x > /tmp/kept/file; ln -s /tmp/kept d/link"
        )
        await sandbox.workspace.remove("d", recursive=True)
        assert (await run_line(sandbox, "cat /tmp/kept/file")).stdout == b"x\n"

    @pytest.mark.parametrize("line", ["ln -s loop loop", "ln -s b loop; ln -s loop b"])
    async def test_a_loop_of_links_is_refused(self, sandbox: Sandbox, line: str) -> None:
        workspace = sandbox.workspace
        await run_line(sandbox, line)
        for call in (
            lambda: read_all(sandbox, "loop"),
            lambda: workspace.list("loop"),
            lambda: workspace.stat("loop/x"),
            lambda: workspace.write("loop/x", b""),
        ):
            with soon(), pytest.raises((InvalidRequest, NotFound)):
                await call()

    async def test_links_to_the_process_file_system_give_nothing(self, sandbox: Sandbox) -> None:
        targets = ["/proc/self/root", "/proc/1/root", "/proc/self/cwd", "/proc/self/fd/0"]
        for index, target in enumerate(targets):
            await run_line(sandbox, f"ln -s {target} p{index}")
            for path in (f"p{index}", f"p{index}/etc/passwd"):
                with soon(), pytest.raises(AtollError):
                    await read_all(sandbox, path)

    async def test_a_fifo_is_refused_at_once(self, sandbox: Sandbox) -> None:
        assert (await run_line(sandbox, "mkfifo fifo && ln -s fifo link")).code == 0
        assert (await sandbox.workspace.stat("fifo")).kind is FileKind.OTHER
        for path in ("fifo", "link"):
            with soon(), pytest.raises(InvalidRequest):
                await read_all(sandbox, path)
            with soon(), pytest.raises(InvalidRequest):
                await _read_first(sandbox, path)
        with soon():
            await sandbox.workspace.write("fifo", b"now a file")
        assert await read_all(sandbox, "fifo") == b"now a file"

    async def test_a_device_gives_nothing(self, sandbox: Sandbox) -> None:
        await run_line(sandbox, "ln -s /dev/zero zero; ln -s /dev/null null")
        for path in ("zero", "null"):
            with soon(), pytest.raises((InvalidRequest, NotFound)):
                await read_all(sandbox, path)

    async def test_a_deep_tree_can_be_removed(self, sandbox: Sandbox) -> None:
        deep = "d/" * 50
        line = f"mkdir -p {deep}; cd {deep}; " * 30 + "echo x > leaf"
        outcome = await run_line(sandbox, line)
        assert outcome.code == 0
        with soon():
            await sandbox.workspace.remove("d", recursive=True)
        assert await sandbox.workspace.list() == []


async def _read_first(sandbox: Sandbox, path: str) -> bytes:
    content = (await sandbox.workspace.read_many([FileInfo(path, FileKind.FILE, 9, 0, 0)]))[0]
    if isinstance(content, AtollError):
        raise content
    return content
