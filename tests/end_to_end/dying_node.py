"""`python -m tests.end_to_end.dying_node STEP FILE`: a node that kills itself at a step, and writes before which it was."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Generator
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from atoll.cli.main import main
from tests.end_to_end.killed_steps import STEPS, Chapter, Moment

# Whoever calls this has told all there is to tell about the start, and is about to be served.
_LISTENS = "atoll.server.listening:create_app"


class Death:
    """What happens at a step, once it is armed."""

    def __init__(self, name: str, witness: Path) -> None:
        self.step = STEPS[name]
        self.is_armed = self.step.chapter is Chapter.START
        self._name = name
        self._witness = witness

    def arm(self) -> None:
        """Die at the next such call."""
        self.is_armed = True

    def is_due(self, *arguments: Any, **options: Any) -> bool:
        """Whether a call is the one to die at."""
        return self.is_armed and self.step.when(*arguments, **options)

    def come(self) -> None:
        """Die, as suddenly as a process can."""
        self._witness.write_text(self._name)
        os.kill(os.getpid(), signal.SIGKILL)


def wrap(original: Callable[..., Any], death: Death) -> Callable[..., Any]:
    """Return a function that does the same until death is due."""
    if inspect.iscoroutinefunction(original):
        return _wrap_coroutine(original, death)
    if inspect.isgeneratorfunction(original):
        return _wrap_generator(original, death)
    return _wrap_function(original, death)


def _wrap_function(original: Callable[..., Any], death: Death) -> Callable[..., Any]:
    @wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        is_due = death.is_due(*arguments, **options)
        if is_due:
            arguments = _before(death, arguments)
        answer = original(*arguments, **options)
        if is_due:
            death.come()
        return answer

    return call


def _wrap_coroutine(original: Callable[..., Any], death: Death) -> Callable[..., Any]:
    @wraps(original)
    async def call(*arguments: Any, **options: Any) -> Any:
        is_due = death.is_due(*arguments, **options)
        if is_due:
            arguments = _before(death, arguments)
        answer = await original(*arguments, **options)
        if is_due:
            death.come()
        return answer

    return call


def _wrap_generator(original: Callable[..., Any], death: Death) -> Callable[..., Any]:
    @wraps(original)
    def call(*arguments: Any, **options: Any) -> Generator[Any, Any, Any]:
        is_due = death.is_due(*arguments, **options)
        if is_due:
            arguments = _before(death, arguments)
        answer = yield from original(*arguments, **options)
        if is_due:
            death.come()
        return answer

    return call


def _before(death: Death, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a call gets that is the last one, unless it is not even made."""
    if death.step.moment is Moment.BEFORE:
        death.come()
    if death.step.moment is Moment.HALF:
        return tuple(_cut(each) for each in arguments)
    return arguments


def _cut(argument: Any) -> Any:
    return argument[: len(argument) // 2] if isinstance(argument, bytes) else argument


def find(target: str) -> tuple[Any, str, Any]:
    """Return where a call is, its name there, and the call; raises `AttributeError` if there is none."""
    module, _, path = target.partition(":")
    place: Any = import_module(module)
    *classes, name = path.split(".")
    for each in classes:
        place = getattr(place, each)
    return place, name, inspect.getattr_static(place, name)


def replace(target: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put another function in the place of one."""
    place, name, original = find(target)
    if isinstance(original, classmethod):
        setattr(place, name, classmethod(make(original.__func__)))
    else:
        setattr(place, name, make(original))


def prepare(name: str, witness: Path) -> None:
    """Have this process die at a step."""
    death = Death(name, witness)
    replace(death.step.target, lambda original: wrap(original, death))

    def arm(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            death.arm()
            return original(*arguments)

        return call

    replace(_LISTENS, arm)


if __name__ == "__main__":
    _, step, witness = sys.argv
    prepare(step, Path(witness))
    sys.argv[1:] = ["node"]
    main()
