"""References to models on the Hub: what they mean, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer import LLM, HubError
from powerinfer.hub.names import Reference, is_reference, parse_reference


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("hf:org/name", Reference("org/name")),
        ("hf:Org-1/Na.me_2:Q4_K_M", Reference("Org-1/Na.me_2", "Q4_K_M")),
        ("hf:o/n@v1.0", Reference("o/n", None, "v1.0")),
        ("hf:o/n:sub/m-q8_0.gguf@refs/pr/7", Reference("o/n", "sub/m-q8_0.gguf", "refs/pr/7")),
    ],
)
def test_what_references_mean(text: str, meant: Reference) -> None:
    assert parse_reference(text) == meant
    assert str(meant) == text
    assert is_reference(text)


def test_the_scheme_may_be_written_large() -> None:
    assert parse_reference("HF:o/n") == Reference("o/n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("llama3", "does not begin with hf:"),
        ("hf:", "not of the form ORG/NAME"),
        ("hf:name", "not of the form ORG/NAME"),
        ("hf:a/b/c", "not of the form ORG/NAME"),
        ("hf:/b", "no slash follows hf:"),
        ("hf://a/b", "no slash follows hf:"),
        ("hf:a/b:", "'' names no file"),
        ("hf:a/b@", "'' is no revision"),
        ("hf:a/b@main:Q4_0", "QUANT stands before @"),
        ("hf:a/b@a..b", "is no revision"),
        ("hf:a/..", "cannot be a name"),
        ("hf:../b", "cannot be a name"),
        ("hf:a/b--c", "cannot be a name"),
        ("hf:a/b.git", "cannot be a name"),
        ("hf:a/b c", "cannot be a name"),
        ("hf:a/" + "b" * 96, "at most 96 characters"),
        ("hf:a/b:x\ny", "names no file"),
    ],
)
def test_what_is_none(text: str, problem: str) -> None:
    with pytest.raises(HubError, match=r"expected hf:ORG/NAME\[:QUANT\]\[@REVISION\]") as caught:
        parse_reference(text)
    assert problem in str(caught.value)
    assert str(caught.value).isprintable()


@given(st.text(max_size=80))
def test_any_text_is_a_reference_or_an_error(text: str) -> None:
    try:
        found = parse_reference(f"hf:{text}")
    except HubError:
        return
    assert parse_reference(str(found)) == found
    assert ".." not in found.repository
    assert found.repository.count("/") == 1


def test_commits_are_told_from_branches() -> None:
    commit = "a" * 40
    assert parse_reference(f"hf:o/n@{commit}").commit == commit
    assert parse_reference("hf:o/n@" + "a" * 39).commit is None
    assert parse_reference("hf:o/n").commit is None


def test_a_bad_name_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(HubError, match="not of the form ORG/NAME"):
        LLM("hf:nobody")
