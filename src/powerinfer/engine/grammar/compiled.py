"""Compiling forms ahead of their use, so that no thread that computes tokens has to.

A compiled form is used for one text: the states that its lexer collects count against its limits.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakKeyDictionary

from llguidance import LLMatcher

from powerinfer.engine.grammar.limits import parser_limits
from powerinfer.engine.grammar.sources import form_source
from powerinfer.engine.grammar.vocabulary import GrammarVocabulary, grammar_vocabulary
from powerinfer.engine.sampling_params import SamplingParams
from powerinfer.errors import PromptError
from powerinfer.tokenizer.tokenizer import Tokenizer

__all__ = ["check_form", "take_matcher", "why_not"]

# Compiled forms that wait for their texts, in all, and for the texts of one request.
_MOST_WAITING = 32
_MOST_OF_ONE = 8
_LONGEST_REASON = 300
# A level takes up to 8 KiB, and a source of 64 KiB has some thousand; untouched pages cost nothing.
_STACK_BYTES = 256 << 20

_lock = threading.Lock()
_Waiting = OrderedDict[str, list[LLMatcher]]
_waiting: WeakKeyDictionary[GrammarVocabulary, _Waiting] = WeakKeyDictionary()


def check_form(tokenizer: Tokenizer, params: SamplingParams) -> None:
    """Compile the form that a text must follow, and keep it for the texts of this request.

    It may take a second: servers call it in a thread of its own. Without a form it does nothing.

    Raises:
        PromptError: the form is not valid, costs too much, or cannot be enforced.
    """
    found = form_source(params)
    if found is None:
        return
    what, source = found
    vocabulary = grammar_vocabulary(tokenizer)
    made = [_compile(vocabulary, what, source) for _ in range(min(params.n, _MOST_OF_ONE))]
    with _lock:
        by_source = _waiting.setdefault(vocabulary, OrderedDict())
        waiting = by_source.setdefault(source, [])
        waiting += made[: max(_MOST_OF_ONE - len(waiting), 0)]
        by_source.move_to_end(source)
        while sum(map(len, by_source.values())) > _MOST_WAITING:
            by_source.popitem(last=False)


def take_matcher(vocabulary: GrammarVocabulary, params: SamplingParams) -> LLMatcher | None:
    """A compiled form for one text; None if any text will do.

    Raises:
        PromptError: as `check_form`.
    """
    found = form_source(params)
    if found is None:
        return None
    what, source = found
    with _lock:
        by_source = _waiting.get(vocabulary, OrderedDict())
        if source in by_source:
            matcher = by_source[source].pop()
            if not by_source[source]:
                del by_source[source]
            return matcher
    return _compile(vocabulary, what, source)


def why_not(matcher: LLMatcher) -> str:
    """The reason why a form cannot be followed, as one line."""
    text = matcher.get_error() or str(matcher.stop_reason())
    if found := re.search(r"^error: (.*)$", text, re.MULTILINE):
        return found[1]
    return text.strip().partition("\n")[0].removesuffix("<non-verbose/>").strip()[:_LONGEST_REASON]


def _compile(vocabulary: GrammarVocabulary, what: str, source: str) -> LLMatcher:
    made: list[LLMatcher] = []
    failed: list[BaseException] = []

    def compile_it() -> None:
        try:
            matcher = LLMatcher(vocabulary.tree, source, log_level=0, limits=parser_limits())
            # The first step does what was put off, and notices what no token can begin.
            if not matcher.is_error():
                matcher.compute_bitmask()
            made.append(matcher)
        except BaseException as error:  # noqa: BLE001  the library's panics are not Exceptions
            failed.append(error)

    _in_large_stack(compile_it)
    if not made or made[0].is_error():
        reason = why_not(made[0]) if made else f"{failed[0]!r:.200}"
        raise PromptError(f"{what} cannot be enforced: {reason}")
    return made[0]


def _in_large_stack(work: Callable[[], None]) -> None:
    """Run a function in a thread whose stack has room for it.

    llguidance goes down a level for each of a chain of rules or references, and a stack that is
    too small ends the process.
    """
    thread = threading.Thread(target=work, name="powerinfer-grammar", daemon=True)
    with _lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
