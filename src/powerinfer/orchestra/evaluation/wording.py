"""Kinds of generated tasks: facts drawn at random, in one of several wordings."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.task import Attachments, Part

__all__ = ["Draft", "Facts", "Form", "Kind", "TaskKind"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a question is about.

    Attributes:
        values: fill the placeholders of a wording.
    """

    values: Mapping[str, object]
    gold: str
    attachments: Attachments = field(default_factory=Attachments)


@dataclass(frozen=True, slots=True)
class Draft:
    """A generated task without its id and kind."""

    question: str
    gold: str
    check: Check
    attachments: Attachments = field(default_factory=Attachments)
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """Questions that differ in their facts and wording only.

    Attributes:
        wordings: templates of `str.format` for training.
        held_out: templates for evaluation, different from those.
    """

    draw: Callable[[random.Random], Facts]
    check: Check
    wordings: tuple[str, ...]
    held_out: tuple[str, ...]

    def make(self, choice: random.Random, *, held_out: bool) -> Draft:
        """Draw facts and a wording."""
        facts = self.draw(choice)
        wording = choice.choice(self.held_out if held_out else self.wordings)
        return Draft(wording.format(**facts.values), facts.gold, self.check, facts.attachments)


class Kind(Protocol):
    """Makes tasks of one kind."""

    def make(self, choice: random.Random, *, held_out: bool) -> Draft:
        """Draw a task, worded for training or, held out, for evaluation."""
        ...


@dataclass(frozen=True, slots=True)
class TaskKind:
    """A kind that has several forms."""

    forms: tuple[Form, ...]

    def make(self, choice: random.Random, *, held_out: bool) -> Draft:
        """Draw a form, facts and a wording."""
        return choice.choice(self.forms).make(choice, held_out=held_out)
