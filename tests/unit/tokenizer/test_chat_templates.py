"""Chat templates: the formats of well-known models, the fallback, and what the sandbox refuses."""

from typing import Any

import numpy as np
import pytest

from powerinfer.errors import PromptError
from powerinfer.tokenizer.chat import FALLBACK_TEMPLATE, render_chat

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello!"}
AGAIN = {"role": "user", "content": "Bye"}
TALK = [USER, ANSWER, AGAIN]

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
QWEN2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = """\
{% if messages[0]['role'] == 'system' %}
{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}
{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if loop.index0 == 0 and system_message != false %}
{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}
{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}
{%- endif %}
{% endfor %}"""
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
    "{% endif %}{% endfor %}"
)
PHI3 = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') %}"
    "{{'<|user|>' + '\n' + message['content'] + '<|end|>' + '\n' + '<|assistant|>' + '\n'}}"
    "{% elif (message['role'] == 'assistant') %}{{message['content'] + '<|end|>' + '\n'}}"
    "{% endif %}{% endfor %}"
)
ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

FORMATS = {
    "chatml": (
        CHATML,
        [SYSTEM, *TALK],
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n",
    ),
    "qwen2": (
        QWEN2,
        [USER],
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    ),
    "llama-2": (
        LLAMA2,
        [SYSTEM, *TALK],
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]",
    ),
    "llama-3": (
        LLAMA3,
        [SYSTEM, USER],
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral": (MISTRAL, TALK, "<s>[INST] Hi [/INST]Hello!</s>[INST] Bye [/INST]"),
    "phi-3": (
        PHI3,
        TALK,
        "<s><|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n<|user|>\nBye<|end|>\n"
        "<|assistant|>\n",
    ),
    "zephyr": (
        ZEPHYR,
        [SYSTEM, *TALK],
        "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n"
        "<|user|>\nBye</s>\n<|assistant|>\n",
    ),
    "fallback": (
        None,
        [SYSTEM, *TALK],
        "<s>Be brief.\n\nUser: Hi\nAssistant: Hello!\nUser: Bye\nAssistant:",
    ),
    "fallback without system message": (FALLBACK_TEMPLATE, [USER], "<s>User: Hi\nAssistant:"),
}


def _render(template: str | None, messages: list[dict[str, Any]], **extra: Any) -> str:
    return render_chat(template, messages, bos_token="<s>", eos_token="</s>", **extra)


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name: str) -> None:
    template, messages, expected = FORMATS[name]
    assert _render(template, messages) == expected


def test_without_generation_prompt() -> None:
    assert _render(CHATML, [USER], add_generation_prompt=False).endswith("Hi<|im_end|>\n")
    assert (
        _render(None, TALK[:2], add_generation_prompt=False) == "<s>User: Hi\nAssistant: Hello!\n"
    )


def test_what_templates_expect_to_find() -> None:
    template = (
        "{% for tool in tools %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{{ tool | tojson }}{% endfor %}{% generation %}{{ '<b>' }}{% endgeneration %}"
        "{{ {'a': 'é<'} | tojson(indent=1) }}{{ strftime_now('%Y') | length }}"
    )
    found = _render(template, [USER], tools=[{"n": "<x>"}, 2, 3])
    assert found == '{"n": "<x>"}2<b>{\n "a": "é<"\n}4'


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system role') }}", "refuses these messages: no system role"),
        ("{% for %}", "broken in line 1"),
        ("{% if %}\n{{", "broken in line"),
        ("{{ messages[5].content.x.y }}", "UndefinedError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "forbidden"),
        ("{{ messages.append(1) }}", "forbidden"),
        ("{{ messages[0].update(role='x') }}", "forbidden"),
        ("{{ 'a' * 1000000000 }}", "forbidden: a repetition"),
        ("{{ [1] * 99999999 }}", "forbidden: a repetition"),
        ("{{ 9 ** 999999999 }}", "forbidden: 999999999 is too large"),
        ("{% for i in range(100000000) %}x{% endfor %}", "OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_bad_templates_are_one_clear_error(template: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        _render(template, [dict(USER)])


@pytest.mark.parametrize("message", [{"content": "Hi"}, {"role": 3, "content": "Hi"}, "Hi", None])
def test_malformed_messages_are_refused(message: Any) -> None:
    with pytest.raises(PromptError, match=r"message 1 is .*'role' and 'content'"):
        _render(CHATML, [USER, message])


def test_messages_are_not_changed() -> None:
    messages = [dict(USER)]
    _render(CHATML, messages)
    assert messages == [USER]


def test_refusals_of_real_templates() -> None:
    with pytest.raises(PromptError, match="roles must alternate"):
        _render(LLAMA2, [USER, USER])
    with pytest.raises(PromptError, match="Conversation roles must alternate"):
        _render(MISTRAL, [SYSTEM])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # What renders as nothing is an undefined value.
        ("{{ ''.__class__ }}{{ ''['__class__'] }}{{ ''|attr('__class__') }}", ""),
        ("{{ '{0.__class__}'.format('') }}{{ ('{0.__class__}'|attr('format'))('') }}", ""),
        ("{% set f = '{x.__class__}'.format_map %}{{ f({'x': 1}) }}", ""),
        ("{{ ['']|map('attr', '__class__')|map('string')|join }}", ""),
        ("{{ raise_exception.__globals__ }}{{ strftime_now.__globals__ }}", ""),
        ("{{ dict.__class__ }}{{ namespace.__globals__ }}{{ cycler.__init__ }}", ""),
        ("{{ namespace(a=1)._Namespace__attrs }}{{ self._TemplateReference__context }}", ""),
        ("{{ ''.__class__.__mro__ }}", "forbidden"),
        ("{{ '{0.__class__.__mro__}'.format('') }}", "forbidden"),
        ("{{ namespace.mro() }}", "forbidden"),
        ("{{ dict.mro() }}", "UndefinedError"),
        ("{{ self.__init__.__globals__ }}", "forbidden"),
        ("{{ namespace(__class__=1) }}", "a namespace has no attribute '__class__'"),
        ("{% set n = namespace() %}{% set n._a = 1 %}", "a namespace has no attribute '_a'"),
        ("{% set n = namespace(a=[1]) %}{{ n.a.append(2) }}", "forbidden"),
        ("{{ {}.setdefault('a', 1) }}", "forbidden"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% import '/etc/passwd' as x %}", "no loader"),
        ("{{ lipsum(n=1000000) }}", "'lipsum' is undefined"),
    ],
)
def test_templates_reach_nothing_of_python(template: str, expected: str) -> None:
    if expected:
        with pytest.raises(PromptError, match=expected):
            _render(template, [USER])
    else:
        assert not _render(template, [USER]).replace("Undefined", "")


class _Secret(str):
    """A text with more to it."""

    password = "p"

    def __str__(self) -> str:
        return "not the text"


def test_templates_get_plain_values_only() -> None:
    """As in transformers: of a subclass its value, of any other object the name of its type."""
    content, odd = _Secret("Hi"), {"a": [object(), (True, 1.5, None)], "n": np.int64(7)}
    template = "{{ messages[0].content }}{{ messages[0].content.password }} {{ odd|tojson }}"
    found = _render(template, [{"role": "user", "content": content}], odd=odd)
    assert found == 'Hi {"a": ["<object>", [true, 1.5, null]], "n": 7}'


def test_endless_messages_are_one_clear_error() -> None:
    message: dict[str, Any] = dict(USER)
    message["self"] = message
    with pytest.raises(PromptError, match="RecursionError"):
        _render(CHATML, [message])


def test_filters_and_blocks_are_those_of_transformers() -> None:
    assert _render("{{ 'é<'|tojson(true) }}{{ 'é<'|tojson }}", [USER]) == '"\\u00e9<""é<"'
    assert _render(
        "{{ {'b': [1], 'a': 2}|tojson(separators=(',', ':'), sort_keys=true) }}", []
    ) == ('{"a":2,"b":[1]}')
    block = "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}"
    assert _render(block, [USER]) == "1False"
    assert _render("{{ namespace(self=1, x=2).self }}{{ dict(a=1).a }}", [USER]) == "11"
    assert _render("{{ dict.fromkeys(['a'], 2)['a'] }}{{ strftime_now('%Z%z') }}", [USER]) == "2"
    assert _render("{{ tools is none and documents is none }}", [USER]) == "True"
    assert _render("{{ tools }}", [USER], tools=["x"]) == "['x']"


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_have_the_names_that_templates_read(name: str) -> None:
    template = "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }},{% endfor %}"
    answer = {**ANSWER, name: "hm"}
    assert _render(template, [USER, answer, {**ANSWER, name: None}])[:6] == ",hmhm,"
    both = {**ANSWER, "reasoning_content": "a", "thinking": "b"}
    assert _render(template, [both]) == "ab,"
