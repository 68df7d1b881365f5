"""What templates can make of short texts is bounded; what conversations need is not refused."""

from typing import Any

import pytest

from powerinfer.errors import PromptError
from powerinfer.tokenizer.chat import render_chat

GROW = "{{% set ns = namespace(s={start}) %}}{{% for i in range(60) %}}{{% set ns.s = {step} %}}"


def _render(template: str, content: str = "Hi", **extra: Any) -> str:
    return render_chat(template, [{"role": "user", "content": content}], **extra)


def _grown(start: str, step: str, shown: str = "ns.s | length") -> str:
    return GROW.format(start=start, step=step) + "{% endfor %}{{ " + shown + " }}"


@pytest.mark.parametrize(
    "step",
    [
        "ns.s ~ ns.s",
        "ns.s + ns.s",
        "[ns.s, ns.s] | join",
        "''.join([ns.s, ns.s])",
        "[{'a': ns.s}, {'a': ns.s}] | join(attribute='a')",
        "ns.s | replace('a', 'aa')",
        "ns.s.replace('a', 'aa')",
        "ns.s.translate({97: 'aa'})",
        "'%s%s' % (ns.s, ns.s)",
        "'%s%s' | format(ns.s, ns.s)",
        "'{0}{0}'.format(ns.s)",
        "'{a}{a}'.format_map({'a': ns.s})",
        "'\"' ~ (ns.s ~ '\"') | tojson",
    ],
)
def test_texts_that_double_are_refused(step: str) -> None:
    with pytest.raises(PromptError, match=r"forbidden: .* characters or elements"):
        _render(_grown("'aaaa'", step))


@pytest.mark.parametrize("step", ["ns.s + ns.s", "(ns.s + ns.s) | list"])
def test_lists_that_double_are_refused(step: str) -> None:
    with pytest.raises(PromptError, match=r"forbidden: .* characters or elements"):
        _render(_grown("[1, 2]", step))


@pytest.mark.parametrize("shown", ["ns.s", "ns.s ~ ''", "ns.s | tojson", "ns.s | string"])
def test_texts_of_lists_in_lists_are_refused(shown: str) -> None:
    with pytest.raises(PromptError, match=r"forbidden: .* characters or elements"):
        _render(_grown("[1]", "[ns.s, ns.s]", shown))


@pytest.mark.parametrize(
    "expression",
    [
        "'%999999999d' % 3",
        "'%*d' % (999999999, 3)",
        "'%999999999d' | format(3)",
        "'{:999999999}'.format(3)",
        "'{:{w}}'.format(3, w=999999999)",
        "'a' | center(999999999)",
        "'a'.center(999999999)",
        "'a'.ljust(999999999)",
        "'a'.rjust(999999999)",
        "'a'.zfill(999999999)",
        "'\t'.expandtabs(999999999)",
        "'a\n' | indent(999999999)",
        "[1] | tojson(indent=999999999)",
        "[1] | batch(999999999, 0) | list",
        "[1] | slice(999999999) | list",
        "('a ' * 99999) | wordwrap(1, wrapstring='x' * 99999)",
    ],
)
def test_wide_texts_are_refused(expression: str) -> None:
    with pytest.raises(PromptError, match=r"forbidden: .* characters or elements"):
        _render("{{ " + expression + " }}")


def test_what_a_template_writes_is_bounded() -> None:
    line = "{{ 'a' * 99999 }}"
    for template in (
        "{% for i in range(9999) %}" + line + "{% endfor %}",
        "{% set x %}{% for i in range(9999) %}" + line + "{% endfor %}{% endset %}",
    ):
        with pytest.raises(PromptError, match="forbidden: a text of"):
            _render(template)


def test_numbers_stay_small() -> None:
    for step in ("ns.s * ns.s", "ns.s ** 9"):
        with pytest.raises(PromptError, match="forbidden: a number of"):
            _render(_grown("7", step, "1"))


def test_long_messages_are_not_refused() -> None:
    text = "100 % {of} it\n" * 200_000
    content = "messages[0].content"
    for expression in (
        content,
        f"'<' + {content} + '>'",
        f"'<' ~ {content} ~ '>'",
        f"['<', {content}] | join(' ')",
        f"{content} | indent(4)",
        f"{content}.replace('of', 'for')",
        f"'%s|' % {content}",
        f"'{{}}|'.format({content})",
        "messages | tojson(indent=2)",
    ):
        assert len(_render("{{ " + expression + " }}", text)) >= len(text)
    assert _render("{{ '%5d%s' % (3, 'a') }}{{ '{:>4}'.format('b') }}{{ 1 ~ none }}") == (
        "    3a   b1None"
    )
    assert _render("{% for i in [1, 2] %}{{ '-'.join(['a', 'b']) }}{% endfor %}") == "a-ba-b"
    assert _render("{{ '-'.join(messages | map(attribute='role')) }}") == "user"
    assert _render("{{ messages | join(', ', attribute='role') }}") == "user"
    assert _render("{{ messages | map(attribute='role') | join }}") == "user"
