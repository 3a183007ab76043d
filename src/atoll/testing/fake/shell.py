"""A very small shell: `;` `&` `&&` `||` `|`, redirection, quotes, variables and a few builtins.

Expanded variables are not split into words, and there is no globbing and no control flow: a line that
needs those is refused as a syntax error, so that a test cannot pass by accident.
"""

from __future__ import annotations

import os
import re
import signal as signals
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from atoll.model.process import Command
from atoll.testing.fake.processes import Channels, InnerProcess, Surroundings
from atoll.testing.fake.streams import Null, Pipe, PipeReader, PipeWriter

# The script that hands a shell line to the best shell there is; the line is its argument.
_WRAPPER = Command.shell(":").argv[2]


async def run_shell(me: InnerProcess) -> int:
    """`sh -c LINE`, `sh FILE`, or `sh` that reads lines from standard input."""
    arguments = [word for word in me.argv[1:] if word not in ("-i", "-l")]
    if arguments[:1] == ["-c"]:
        line = arguments[2] if arguments[1] == _WRAPPER else arguments[1]
        return await Shell(me).run(line)
    if arguments:
        data = b""
        channel = me.open(arguments[0])
        while chunk := await channel.read(64 * 1024):
            data += chunk
        return await Shell(me).run(data.decode("utf-8", "surrogateescape"))
    return await _run_input(me)


async def _run_input(me: InnerProcess) -> int:
    shell = Shell(me)
    if me.terminal:
        me.caught |= {signals.SIGINT, signals.SIGTERM}
    waiting = b""
    while True:
        if me.terminal:
            await me.write(me.env.get("PS1", "$ "))
        while b"\n" not in waiting and (data := await me.read()):
            waiting += data
        line, _, waiting = waiting.partition(b"\n")
        if not line and not waiting and not data:
            return shell.code
        code = await shell.run(line.decode("utf-8", "surrogateescape"))
        if shell.exited:
            return code


@dataclass
class _Simple:
    """One command: its words as written, and its redirections."""

    words: list[str] = field(default_factory=list)
    redirects: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class _Job:
    """Pipelines joined by && and ||, perhaps in the background."""

    steps: list[tuple[str, list[_Simple]]] = field(default_factory=list)
    background: bool = False


class _SyntaxError(Exception):
    """A line that this shell does not understand."""


_TOKEN = re.compile(
    r"""(?P<space>[ \t]+ | \#[^\n]*)
      | (?P<operator>&& | \|\| | \d?>&\d | \d?>> | \d?> | < | [;&|\n])
      | (?P<word>(?: '[^']*' | "(?:\\.|[^"\\])*" | \\. | [^\s;&|<>'"\\] )+)""",
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)|([^'"\\]+)""", re.DOTALL)
_VARIABLE = re.compile(r"\\([\\\"$`])|\$(?:([$?!])|(\w+)|\{(\w+)\})")
_KEYWORDS = {"if", "while", "until", "for", "case", "{", "}", "(", ")", "!", "function"}


def parse(text: str) -> list[_Job]:
    """Return the jobs of a script, or raise `_SyntaxError`."""
    jobs = [_Job(steps=[("", [_Simple()])])]
    tokens = _tokens(text)
    for kind, token in tokens:
        pipeline = jobs[-1].steps[-1][1]
        if kind == "word":
            pipeline[-1].words.append(token)
        elif token in ("&&", "||"):
            jobs[-1].steps.append((token, [_Simple()]))
        elif token == "|":
            pipeline.append(_Simple())
        elif token in (";", "&", "\n"):
            jobs[-1].background = token == "&"
            jobs.append(_Job(steps=[("", [_Simple()])]))
        elif "&" in token:
            pipeline[-1].redirects.append((token, ""))
        else:
            pipeline[-1].redirects.append((token, next(tokens, ("", ""))[1]))
    return [job for job in jobs if _is_complete(job)]


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _SyntaxError(text[position : position + 20])
        position = match.end()
        if match.lastgroup != "space":
            yield match.lastgroup or "", match[0]


def _is_complete(job: _Job) -> bool:
    simples = [simple for _, pipeline in job.steps for simple in pipeline]
    if len(simples) == 1 and not simples[0].words and not simples[0].redirects:
        return False
    for simple in simples:
        if not simple.words or simple.words[0] in _KEYWORDS:
            raise _SyntaxError(" ".join(simple.words) or "missing command")
    return True


class Shell:
    """Runs scripts in one process."""

    def __init__(self, me: InnerProcess) -> None:
        self._me = me
        self.code = 0
        self.exited = False
        self._children: list[InnerProcess] = []
        self._last_pid = 0
        self._builtins: dict[str, Callable[[Sequence[str]], Awaitable[int]]] = {
            ":": self._nothing,
            "cd": self._cd,
            "command": self._command,
            "exit": self._exit,
            "export": self._export,
            "kill": self._kill,
            "trap": self._trap,
            "wait": self._wait,
        }

    async def run(self, script: str) -> int:
        """Run a script and return the code of its last command."""
        try:
            jobs = parse(script)
        except _SyntaxError as error:
            await self._me.complain(f"syntax error near {error}")
            return 2
        for job in jobs:
            await self._run_job(job)
            if self.exited:
                break
        return self.code

    async def _run_job(self, job: _Job) -> None:
        if not job.background:
            await self.run_steps(job.steps)
            return
        channels = (Null(), self._me.channels[1], self._me.channels[2])
        child = self._me.fork(partial(_run_alone, job.steps), channels=channels)
        self._children.append(child)
        self._last_pid = child.pid

    async def run_steps(self, steps: Sequence[tuple[str, list[_Simple]]]) -> None:
        """Run pipelines as && and || say."""
        for connector, pipeline in steps:
            if (
                self.exited
                or (connector == "&&" and self.code)
                or (connector == "||" and not self.code)
            ):
                continue
            if len(pipeline) == 1:
                self.code = await self._run_simple(pipeline[0])
            else:
                self.code = await self._run_pipeline(pipeline)

    async def _run_pipeline(self, pipeline: Sequence[_Simple]) -> int:
        stdin, stdout, stderr = self._me.channels
        members = []
        for index, simple in enumerate(pipeline):
            pipe = Pipe()
            last = index == len(pipeline) - 1
            channels = (stdin, stdout if last else PipeWriter(pipe), stderr)
            members.append(self._me.fork(partial(_run_alone, [("", [simple])]), channels=channels))
            stdin = PipeReader(pipe)
        for member in members:
            await member.ended.wait()
        return members[-1].shell_code

    async def _run_simple(self, simple: _Simple) -> int:
        env, words = self._split_assignments(simple)
        if not words:
            self._me.env.update(env)
            return 0
        try:
            channels = self._redirect(simple)
            if words[0] == "exec":
                return await self._exec(words[1:], channels)
            if words[0] in self._builtins:
                return await self._run_builtin(words, channels)
            return await self._run_child(words, {**self._me.env, **env}, channels)
        except OSError as error:
            await self._me.complain(
                f"{error.filename or words[0]}: {os.strerror(error.errno or 0)}"
            )
            return 2

    def _split_assignments(self, simple: _Simple) -> tuple[dict[str, str], list[str]]:
        env: dict[str, str] = {}
        raw = list(simple.words)
        while raw and (match := re.match(r"([A-Za-z_]\w*)=", raw[0])):
            env[match[1]] = self._expand(raw.pop(0)[match.end() :])
        words = [(word, self._expand(word)) for word in raw]
        # A variable that is empty and not quoted is no word at all.
        return env, [text for word, text in words if text or re.search(r"['\"]", word)]

    def _expand(self, word: str) -> str:
        def piece(match: re.Match[str]) -> str:
            single, double, escaped, plain = match.groups()
            if single is not None or escaped is not None:
                return single if single is not None else escaped
            return _VARIABLE.sub(self._value, double if double is not None else plain)

        return _PIECE.sub(piece, word)

    def _value(self, match: re.Match[str]) -> str:
        escaped, special, name, braced = match.groups()
        if escaped:
            return escaped
        known = {"$": str(self._me.pid), "?": str(self.code), "!": str(self._last_pid)}
        return known[special] if special else self._me.env.get(name or braced, "")

    def _redirect(self, simple: _Simple) -> Channels:
        channels = list(self._me.channels)
        for operator, target in simple.redirects:
            number = int(operator[0]) if operator[0].isdigit() else int(operator[0] == ">")
            if ">&" in operator:
                channels[number] = channels[int(operator[-1])]
            elif operator == "<":
                channels[0] = self._me.open(self._expand(target))
            else:
                append = operator.endswith(">>")
                channels[number] = self._me.open_to_write(self._expand(target), append=append)
        return channels[0], channels[1], channels[2]

    async def _run_builtin(self, words: Sequence[str], channels: Channels) -> int:
        before = self._me.channels
        for channel in before:
            channel.hold()
        self._me.replace_channels(channels)
        try:
            return await self._builtins[words[0]](words[1:])
        finally:
            self._me.replace_channels(before)
            for channel in before:
                channel.drop()

    async def _run_child(
        self, words: Sequence[str], env: dict[str, str], channels: Channels
    ) -> int:
        given = Surroundings(words, env, self._me.cwd, channels)
        try:
            program, given = self._me.table.look_up(given)
        except (FileNotFoundError, NotADirectoryError):
            await self._me.complain(f"{words[0]}: not found")
            return 127
        except PermissionError:
            await self._me.complain(f"{words[0]}: Permission denied")
            return 126
        child = self._me.fork(program, argv=given.argv, channels=channels, env=env)
        await child.ended.wait()
        return child.shell_code

    async def _exec(self, words: Sequence[str], channels: Channels) -> int:
        self.exited = True
        self._me.replace_channels(channels)
        return await self._me.become(words)

    async def _nothing(self, words: Sequence[str]) -> int:
        return 0

    async def _cd(self, words: Sequence[str]) -> int:
        place = self._me.tree.find(words[0], cwd=self._me.cwd)
        place.existing_directory()
        self._me.cwd = place.path
        return 0

    async def _command(self, words: Sequence[str]) -> int:
        """`command -v NAME`."""
        given = Surroundings(words[1:], self._me.env, self._me.cwd, self._me.channels)
        self._me.table.look_up(given)
        await self._me.write(words[1] + "\n")
        return 0

    async def _exit(self, words: Sequence[str]) -> int:
        self.exited = True
        return int(words[0]) if words else self.code

    async def _export(self, words: Sequence[str]) -> int:
        for word in words:
            name, _, value = word.partition("=")
            self._me.env[name] = value
        return 0

    async def _kill(self, words: Sequence[str]) -> int:
        """`kill [-NUMBER|-NAME] PID`."""
        number = _signal_number(words[0][1:]) if words[0].startswith("-") else signals.SIGTERM
        target = self._me.table.find(int(words[-1]))
        if target is None:
            await self._me.complain(f"kill: {words[-1]}: No such process")
            return 1
        if number:
            target.send(number)
        await self._me.sleep(0)
        return 0

    async def _trap(self, words: Sequence[str]) -> int:
        """`trap '' NAME…`: ignore; `trap - NAME…`: do as by default."""
        numbers = {_signal_number(word) for word in words[1:]}
        if words[0] == "":
            self._me.ignored |= numbers
        elif words[0] == "-":
            self._me.ignored -= numbers
        else:
            await self._me.complain("trap: only '' and - are known here")
            return 2
        return 0

    async def _wait(self, words: Sequence[str]) -> int:
        for child in self._children:
            await child.ended.wait()
        return 0


async def _run_alone(steps: Sequence[tuple[str, list[_Simple]]], me: InnerProcess) -> int:
    shell = Shell(me)
    await shell.run_steps(steps)
    return shell.code


def _signal_number(word: str) -> int:
    return int(word) if word.isdigit() else signals.Signals[f"SIG{word.removeprefix('SIG')}"]
