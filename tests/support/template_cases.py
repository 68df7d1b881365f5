"""Conversations and chat templates, for the tests and `scripts/make-goldens-templates`."""

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

__all__ = [
    "CASES",
    "DIGESTS",
    "SPECIAL",
    "TEMPLATES",
    "digest",
    "rendered_by_transformers",
    "stored_digests",
]

_FOLDER = Path(__file__).resolve().parent.parent / "golden" / "templates"
DIGESTS = _FOLDER / "digests.json"
TEMPLATES = {path.stem: path.read_text() for path in sorted(_FOLDER.glob("*.jinja"))}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

Talk = list[dict[str, Any]]


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


_SYSTEM = {"role": "system", "content": "Answer  in one sentence.\n"}
_TALK = [_user("Hi, <b>who</b> are you?"), _assistant("A model.\n"), _user(" Say é, 你好 & {{x}} ")]
_THOUGHT = "They ask.\nI answer."
_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of <place>, e.g. 'Zürich'",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A town", "enum": ["Bonn", "Köln"]},
                "days": {"type": "array", "items": {"type": "integer"}, "default": [1]},
            },
            "required": ["place"],
        },
    },
}
_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Köln"}}}
_RESULT = {"role": "tool", "name": "weather", "content": '{"sky": "blue"}'}
_CALLED = [_user("Weather?"), _assistant("", tool_calls=[_CALL | {"id": "abcdefghi"}])]
_ANSWERED = [*_CALLED, _RESULT | {"tool_call_id": "abcdefghi"}]

CASES: dict[str, tuple[Talk, dict[str, Any]]] = {
    "one message": (_TALK[:1], {}),
    "talk": (_TALK, {}),
    "system": ([_SYSTEM, *_TALK], {}),
    "no generation prompt": (_TALK[:2], {"add_generation_prompt": False}),
    "system, no generation prompt": ([_SYSTEM, *_TALK[:2]], {"add_generation_prompt": False}),
    "system alone": ([_SYSTEM], {}),
    "developer": ([{"role": "developer", "content": "Be kind."}, *_TALK], {}),
    "thinking off": ([_SYSTEM, *_TALK], {"enable_thinking": False}),
    "thinking on": (_TALK, {"enable_thinking": True}),
    "granite's thinking": (_TALK, {"thinking": True}),
    "effort": (_TALK, {"reasoning_effort": "high", "model_identity": "You are X."}),
    "old thoughts in the text": (
        [_TALK[0], _assistant(f"<think>\n{_THOUGHT}\n</think>\n\nA model."), _TALK[2]],
        {},
    ),
    "last thoughts in the text": (
        [_TALK[0], _assistant(f"<think>\n{_THOUGHT}\n</think>\n\nA model.")],
        {"add_generation_prompt": False},
    ),
    **{
        f"old thoughts as {name}": ([_TALK[0], _assistant("A", **{name: _THOUGHT}), _TALK[2]], {})
        for name in ("reasoning_content", "thinking", "reasoning")
    },
    **{
        f"last thoughts as {name}": (
            [_TALK[0], _assistant("A", **{name: _THOUGHT})],
            {"add_generation_prompt": False},
        )
        for name in ("reasoning_content", "thinking", "reasoning")
    },
    "no thoughts": ([_TALK[0], _assistant("A", reasoning_content=None), _TALK[2]], {}),
    "channels in the text": (
        [_TALK[0], _assistant("<|channel|>analysis<|message|>hm<|end|>A"), _TALK[2]],
        {},
    ),
    "tools": ([_SYSTEM, *_TALK], {"tools": [_WEATHER]}),
    "no tools": (_TALK, {"tools": None}),
    "empty list of tools": (_TALK, {"tools": []}),
    "call": (_CALLED, {"tools": [_WEATHER], "add_generation_prompt": False}),
    "answered call": (_ANSWERED, {"tools": [_WEATHER]}),
    "talk after a call": ([*_ANSWERED, _assistant("Blue."), _user("Ok")], {"tools": [_WEATHER]}),
    "documents": (_TALK, {"documents": [{"doc_id": 1, "title": "T", "text": "It is <blue>."}]}),
    "content in parts": ([_user([{"type": "text", "text": " Hi "}])], {}),
    "two questions": ([_TALK[0], _TALK[0]], {}),
    "unknown role": ([{"role": "poet", "content": "Ah"}, *_TALK], {}),
}


def digest(render: Callable[[], str]) -> str:
    """Of a rendering; "refused" where it raises. Today's date does not count."""
    try:
        text = render()
    except Exception:  # noqa: BLE001  a template can raise anything
        return "refused"
    for pattern in ("%Y-%m-%d", "%B %d, %Y", "%d %B %Y", "%d %b %Y"):
        text = text.replace(datetime.now().astimezone().strftime(pattern), pattern)
    return hashlib.sha256(text.encode()).hexdigest()


def rendered_by_transformers(template: str, case: str) -> str:
    """What `apply_chat_template` of transformers makes of a case."""
    from transformers.utils.chat_template_utils import render_jinja_template

    messages, extra = CASES[case]
    options = {"add_generation_prompt": True, **extra}
    texts, _ = render_jinja_template([messages], chat_template=template, **SPECIAL, **options)
    return str(texts[0])


def stored_digests() -> dict[str, dict[str, str]]:
    """By template and case."""
    stored: dict[str, dict[str, str]] = json.loads(DIGESTS.read_text())["digests"]
    return stored
