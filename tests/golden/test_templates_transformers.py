"""Chat templates of the families, rendered as transformers' `apply_chat_template` renders them.

Digests of its texts are stored, so the comparison runs without it; where it is installed, it
renders again, must still give them, and whole texts are compared.
"""

from functools import partial
from typing import Any

import pytest

from powerinfer.errors import PromptError
from powerinfer.tokenizer.chat import render_chat
from template_cases import (
    CASES,
    SPECIAL,
    TEMPLATES,
    digest,
    rendered_by_transformers,
    stored_digests,
)

PAIRS = [(name, case) for name in TEMPLATES for case in CASES]


def _ours(name: str, case: str) -> str:
    messages, extra = CASES[case]
    options: dict[str, Any] = {**SPECIAL, **extra}
    return render_chat(TEMPLATES[name], messages, **options)


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_renderings_have_the_stored_digests(name: str, case: str) -> None:
    assert digest(partial(_ours, name, case)) == stored_digests()[name][case]


@pytest.mark.needs("transformers")
@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_renderings_equal_transformers(name: str, case: str) -> None:
    theirs = partial(rendered_by_transformers, TEMPLATES[name], case)
    assert digest(theirs) == stored_digests()[name][case]
    if stored_digests()[name][case] == "refused":
        with pytest.raises(PromptError):
            _ours(name, case)
    else:
        assert _ours(name, case) == theirs()


@pytest.mark.parametrize("name", TEMPLATES)
def test_most_cases_are_written_and_some_are_refused(name: str) -> None:
    results = stored_digests()[name]
    assert set(results) == set(CASES)
    assert results["talk"] != "refused"
    assert len(set(results.values())) > 8
