"""Interface of a format of tool calls: to detect, parse and enforce it."""

import json
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser, ToolCallDelta
from powerinfer.serve.chat.messages import ChatMessage
from powerinfer.serve.tool_formats._json import CallObject

__all__ = [
    "NO_PARAMETERS",
    "ForcedCall",
    "Pieces",
    "StepParser",
    "Tool",
    "ToolFormat",
    "one_call_each",
    "random_id",
]

NO_PARAMETERS: Mapping[str, object] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
"""Schema of the arguments of a function that takes none."""

_ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, object] = field(default_factory=lambda: NO_PARAMETERS)
    description: str = ""


@dataclass(frozen=True, slots=True)
class ForcedCall:
    """A tool call that a model is made to write.

    Attributes:
        prefix: end of the prompt that belongs to the answer, including special tokens.
        schema: JSON schema of everything that the model writes; empty if it is no JSON.
        grammar: the grammar of it, then.
    """

    prefix: str
    schema: Mapping[str, object] = field(default_factory=dict)
    grammar: str | None = None


class ToolFormat(ABC):
    """A format of tool calls; a file of this folder exports one as `FORMAT`."""

    # Templates of this format show the tools of a request.
    is_of_template = True
    # Beginnings of a call that also end reasoning without a closing mark.
    ends_reasoning: Sequence[str] = ()

    @abstractmethod
    def is_shown_by(self, template: str) -> bool:
        """Return whether a chat template (Jinja source) writes calls in this format."""

    @abstractmethod
    def new_parser(self, tools: Sequence[Tool]) -> ChatOutputParser:
        """Make a parser for one answer that may call the tools."""

    @abstractmethod
    def forced(self, tools: Sequence[Tool], template: str) -> ForcedCall:
        """Make a model call one of `tools`, of which there is at least one.

        Raises:
            PromptError: their arguments cannot be enforced.
        """

    def new_id(self) -> str:
        """Create the id of a call."""
        return f"call_{random_id(24)}"

    def messages(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
        """Convert messages for templates of this format; `tools` may be called by the answer."""
        del tools
        return [{**message, "content": message["content"] or ""} for message in messages]


class Pieces:
    """Collects the pieces that a parser finds, without white space around calls."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._found: list[ChatDelta] = []
        self._space = ""
        self._after_call = False
        self.num_calls = 0

    def say(self, text: str) -> None:
        """Add text; white space at its end waits for what follows."""
        text = self._space + text
        if self._after_call:
            text = text.lstrip()
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            self._after_call = False
            self._found.append(ChatDelta(content=said))

    def think(self, text: str) -> None:
        """Add reasoning."""
        if text:
            self._found.append(ChatDelta(reasoning=text))

    def begin_call(self, name: str) -> None:
        """Begin a call, which ends the text before it."""
        self._space, self._after_call = "", True
        self._add(ToolCallDelta(index=self.num_calls, id=self._new_id(), name=name))
        self.num_calls += 1

    def add_arguments(self, text: str) -> None:
        """Continue the last call."""
        if text:
            self._add(ToolCallDelta(index=self.num_calls - 1, arguments=text))

    def add_object(self, call: CallObject) -> None:
        """Add what was read of a call that is an object, from its name on."""
        if call.name is None:
            return
        if not call.is_begun:
            call.is_begun = True
            self.begin_call(call.name)
        self.add_arguments(call.take_arguments())

    def add_argument(self, name: str, value: str = "", *, is_first: bool) -> None:
        """Begin an argument of the last call, in front of the JSON of its value, or of a part."""
        between = "{" if is_first else ", "
        self.add_arguments(f"{between}{json.dumps(name, ensure_ascii=False)}: {value}")

    def take(self) -> list[ChatDelta]:
        """Take the pieces found since the last call."""
        found, self._found = self._found, []
        return found

    def finish(self) -> list[ChatDelta]:
        """Take the last pieces, with white space at the end unless it follows a call."""
        if self._space and not self._after_call:
            self._found.append(ChatDelta(content=self._space))
        self._space = ""
        return self.take()

    def _add(self, call: ToolCallDelta) -> None:
        self._found.append(ChatDelta(tool_call=call))


class StepParser:
    """Base of parsers whose steps each read a part of the text, and return the rest."""

    _step: Callable[[str], str]

    def __init__(self, call_format: ToolFormat) -> None:
        self._pieces = Pieces(call_format.new_id)

    def push(self, text: str) -> list[ChatDelta]:
        """Parse on; returns what is certain now."""
        while text:
            text = self._step(text)
        return self._pieces.take()

    def _drop(self, text: str) -> str:
        """Drop all text after invalid arguments."""
        del text
        return ""


def one_call_each(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Split messages with several calls into messages with one call, each before its result."""
    split: list[ChatMessage] = []
    results = {id(each): each for each in messages if each["role"] == "tool"}
    for message in messages:
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            if message["role"] != "tool" or results.pop(id(message), None) is not None:
                split.append(message)
            continue
        for index, call in enumerate(calls):
            said = message if index == 0 else ChatMessage(role=message["role"], content="")
            split.append({**said, "tool_calls": [call]})
            own = [r for r in results.values() if r.get("tool_call_id") == call["id"]]
            for result in own[:1]:
                split.append(results.pop(id(result)))
    return split


def random_id(length: int) -> str:
    """Draw letters and digits."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(length))
