"""Source code that llguidance compiles for the form in sampling parameters."""

import re

from llguidance import LLMatcher

from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.gbnf import gbnf_to_lark
from powerinfer.sampling.grammar.json_schema import schema_source
from powerinfer.sampling.grammar.limits import check_repetitions, check_terminals
from powerinfer.sampling.sampling_params import SamplingParams

__all__ = ["form_source"]

_IS_LARK = re.compile(r"\s*%llguidance\b")
_LAST_BACKSLASHES = re.compile(r"(\\*)\Z")


def form_source(params: SamplingParams) -> tuple[str, str] | None:
    """Return the form's name in messages and its source for llguidance; None without a form.

    Raises:
        PromptError: the form is not valid, costs too much, or cannot be enforced.
    """
    if isinstance(params.json_schema, str):
        return "the JSON schema", schema_source(params.json_schema)
    if params.regex is not None:
        return "the regular expression", _regex_source(params.regex)
    if params.grammar is not None:
        is_lark = _IS_LARK.match(params.grammar)
        source = params.grammar if is_lark else gbnf_to_lark(params.grammar)
        check_repetitions(source, "the grammar")
        check_terminals(source, "the grammar")
        return "the grammar", source
    return None


def _regex_source(regex: str) -> str:
    check_repetitions(regex, "the regular expression")
    end = _LAST_BACKSLASHES.search(regex)
    if end is not None and len(end[1]) % 2:
        raise PromptError("the regular expression ends with a backslash, which escapes nothing")
    return LLMatcher.grammar_from_regex(regex)
