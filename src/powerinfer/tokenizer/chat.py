"""Chat templates: a list of messages to the text of a prompt, in a Jinja sandbox.

A template comes with a model file, so it is untrusted code: it runs without access to
Python's internals, cannot change its arguments, and cannot request a text of absurd size
(`template_sandbox.py`). Templates get the environment of transformers' `apply_chat_template`:
`raise_exception`, `strftime_now`, `tojson` without HTML escapes, `break` and `continue`,
`generation` blocks, `tools` and `documents` that are None, and the reasoning of a model under each
of the names in use. As there, messages reach a template as plain JSON values only.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import numpy as np
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from powerinfer.errors import PromptError
from powerinfer.tokenizer.template_sandbox import TemplateSandbox, to_json

__all__ = ["FALLBACK_TEMPLATE", "render_chat"]

# For models without a template of their own, such as base models: a plain dialogue. The first
# system message comes first; only BOS is a special token, so any vocabulary can encode it.
FALLBACK_TEMPLATE = """\
{{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ message.content }}

{% elif message.role == 'user' %}User: {{ message.content }}
{% elif message.role == 'assistant' %}Assistant: {{ message.content }}
{% else %}{{ raise_exception('the model has no template, and a plain dialogue has the roles '
"system, user and assistant, not '" ~ message.role[:30] ~ "'") }}
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}Assistant:{% endif %}"""

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def render_chat(
    template: str | None,
    messages: Sequence[Mapping[str, object]],
    *,
    bos_token: str = "",
    eos_token: str = "",
    add_generation_prompt: bool = True,
    **extra: object,
) -> str:
    """Render a conversation in the format a model was trained on.

    Encode the result with ``parse_special=True`` and ``add_bos=False``: templates write BOS.

    Args:
        template: Jinja source, `Tokenizer.chat_template`; None takes `FALLBACK_TEMPLATE`.
        messages: each a mapping with ``role`` (system, user, assistant ...) and ``content``;
            an assistant message may also have ``reasoning_content``.
        bos_token: text of BOS, empty if there is none.
        eos_token: text of EOS, empty if there is none.
        add_generation_prompt: end with the beginning of the assistant's turn.
        **extra: more variables for the template (tools, documents, enable_thinking ...).

    Raises:
        PromptError: the messages are malformed, or the template is broken, refuses the messages
            or tries something the sandbox forbids.
    """
    _check(messages)
    try:
        variables = _plain({"tools": None, "documents": None, **extra})
        written = [_with_reasoning(_plain(message)) for message in messages]
        text = _compile(template or FALLBACK_TEMPLATE).render(
            messages=written,
            bos_token=bos_token,
            eos_token=eos_token,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
    except PromptError:
        raise
    except jinja2.TemplateSyntaxError as error:
        raise PromptError(f"the chat template is broken in line {error.lineno}: {error}") from None
    except SecurityError as error:
        raise PromptError(f"the chat template tries something forbidden: {error}") from None
    except Exception as error:  # noqa: BLE001  a template can raise anything
        error_type = type(error).__name__
        raise PromptError(
            f"the chat template failed on these messages: {error_type}: {error}"
        ) from None
    return text


def _check(messages: Sequence[Mapping[str, object]]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PromptError(
                f"message {index} is {message!r:.80}; expected a mapping with 'role' and 'content'"
            )


def _plain(value: object) -> Any:
    """Copy as JSON's types only: templates must not call methods of other objects."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    # Subclasses may have their own methods and representations.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return f"<{type(value).__name__}>"


def _with_reasoning(message: dict[str, object]) -> dict[str, object]:
    """Copy the reasoning to the keys that templates read: Qwen3's and gpt-oss's."""
    found = [message[name] for name in _REASONING_KEYS if message.get(name) is not None]
    if not found:
        return message
    return {"thinking": found[0], **message, "reasoning_content": found[0]}


class _GenerationBlocks(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Keep the content without the mark; as in transformers, it is a scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.Scope(list(body), lineno=line)]


@lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    environment = TemplateSandbox([loopcontrols, _GenerationBlocks])
    environment.filters["tojson"] = _to_json
    helpers: dict[str, Callable[..., object]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    environment.globals.update(helpers)
    # Makes as much random text as a template requests.
    del environment.globals["lipsum"]
    return environment.from_string(template)


class _Namespace(jinja2.utils.Namespace):
    """Variables that a loop can set; names with a leading underscore are Python's."""

    def __init__(self, /, *args: Mapping[str, object], **kwargs: object) -> None:
        """Set variables as `dict` does; one may be called `self`."""
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_attribute(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r:.40}")


class _Dict:
    """`dict` without the attributes of a type."""

    def __call__(self, *args: Mapping[str, object], **kwargs: object) -> dict[str, object]:
        """As `dict(...)`."""
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[object], value: object = None, /) -> dict[object, object]:
        """As `dict.fromkeys(...)`."""
        return dict.fromkeys(keys, value)


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  transformers' order
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002  likewise
) -> str:
    """Encode as JSON, with the options of transformers in its order."""
    encoder = json.JSONEncoder(
        indent=indent, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys
    )
    return to_json(value, encoder)


def _raise_exception(message: str) -> NoReturn:
    raise PromptError(f"the chat template refuses these messages: {message}")


def _strftime_now(pattern: str) -> str:
    # A time without a zone, like transformers.
    return datetime.now().astimezone().replace(tzinfo=None).strftime(pattern)
