"""Asks the person at the terminal what is to be in an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.validation import ValidationError, Validator

from atoll.errors import InvalidRequest
from atoll.model.image_recipe import FEATURES, RUNTIMES, ImageRecipe, unpinned

T = TypeVar("T")


def ask_recipe(make: Callable[..., ImageRecipe], name: str | None) -> ImageRecipe:
    """Return what was answered; each answer is checked as it is given.

    Raises:
        KeyboardInterrupt: it was cancelled.
    """
    session: PromptSession[str] = PromptSession()
    try:
        chosen = name or _ask(session, "Name: ", lambda text: ImageRecipe(text.strip()).name)
        runtimes = _ask_words(
            session,
            f"Runtimes ({', '.join(RUNTIMES)}): ",
            lambda words: ImageRecipe(chosen, words).runtimes,
            RUNTIMES,
        )
        features = _ask_words(
            session,
            f"Features ({', '.join(FEATURES)}; none is fine): ",
            lambda words: ImageRecipe(chosen, runtimes, words).features,
            FEATURES,
        )
        apt = _ask_words(
            session, "Debian packages: ", lambda words: ImageRecipe(chosen, apt=words).apt
        )
        recipe = make(name=chosen, runtimes=runtimes, features=features, apt=apt)
        if {"node", "bun"} & {*runtimes}:
            npm = _ask_words(
                session, "npm packages: ", lambda words: replace(recipe, npm=words).npm
            )
            recipe = replace(recipe, npm=npm)
        if "python" in runtimes:
            pip = _ask_words(
                session, "Python packages: ", lambda words: replace(recipe, pip=words).pip
            )
            recipe = replace(recipe, pip=pip)
        _confirm(session, recipe)
    except EOFError as error:
        raise KeyboardInterrupt from error
    return recipe


def _confirm(session: PromptSession[str], recipe: ImageRecipe) -> None:
    loose = ", ".join(unpinned(recipe)) or "nothing"
    print(f"{recipe.tag} with {', '.join(recipe.runtimes) or 'no runtime'}; not pinned: {loose}")
    if session.prompt("Go on? [Y/n] ").strip().lower() not in ("", "y", "yes"):
        raise KeyboardInterrupt


def _ask_words(
    session: PromptSession[str],
    question: str,
    check: Callable[[Sequence[str]], Sequence[str]],
    known: Sequence[str] = (),
) -> Sequence[str]:
    completer = WordCompleter(list(known)) if known else None
    return _ask(session, question, lambda text: check(text.replace(",", " ").split()), completer)


def _ask(
    session: PromptSession[str],
    question: str,
    read: Callable[[str], T],
    completer: WordCompleter | None = None,
) -> T:
    answer = session.prompt(
        question,
        completer=completer,
        validator=_Checked(read),
        validate_while_typing=False,
    )
    return read(answer)


class _Checked(Validator):
    """Says below the line what is wrong with it."""

    def __init__(self, read: Callable[[str], object]) -> None:
        self._read = read

    def validate(self, document: object) -> None:
        text = getattr(document, "text", "")
        try:
            self._read(text)
        except InvalidRequest as error:
            raise ValidationError(len(text), error.message) from error
