"""Compilation of forms, shared by the texts of one request.

Compiling may take a second, so callers that must not wait make constraints in another thread.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakKeyDictionary

from llguidance import LLMatcher

from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.limits import parser_limits
from powerinfer.sampling.grammar.sources import form_source
from powerinfer.sampling.grammar.vocabulary import GrammarVocabulary
from powerinfer.sampling.sampling_params import SamplingParams

__all__ = ["check_form", "new_matcher", "why_not"]

# Compiled forms kept for later texts of their requests.
_MOST_SHARED = 16
_LONGEST_REASON = 300
# A level takes up to 8 KiB, and 64 KiB of source have some thousands; untouched pages cost nothing.
_STACK_BYTES = 256 << 20

_lock = threading.Lock()
# By source: the compiled form at the beginning of a text, and the number of texts left.
_Shared = OrderedDict[str, tuple[LLMatcher, int]]
_shared: WeakKeyDictionary[GrammarVocabulary, _Shared] = WeakKeyDictionary()


def new_matcher(vocabulary: GrammarVocabulary, params: SamplingParams) -> LLMatcher | None:
    """Compile the form of one text; None if there is no form.

    The `n` texts of a request share the lexer's states, and the limits on them. Requests do not
    share them: many would reach the limits.

    Raises:
        PromptError: the form is not valid, costs too much, or cannot be enforced.
    """
    found = form_source(params)
    if found is None:
        return None
    what, source = found
    if params.n == 1:
        return _compile(vocabulary, what, source)
    with _lock:
        first, num_left = _shared.setdefault(vocabulary, OrderedDict()).pop(source, (None, 0))
    if first is None:
        first, num_left = _compile(vocabulary, what, source), params.n
    if num_left > 1:
        with _lock:
            _shared[vocabulary][source] = first, num_left - 1
            while len(_shared[vocabulary]) > _MOST_SHARED:
                _shared[vocabulary].popitem(last=False)
    return first.deep_copy()


def check_form(params: SamplingParams) -> None:
    """Raise PromptError as `new_matcher` would, as far as that is possible without a vocabulary."""
    found = form_source(params)
    # Grammars may name tokens, which only a vocabulary knows; GBNF has been parsed by now.
    if found is None or params.grammar is not None:
        return
    what, source = found
    reasons: list[str] = []

    def validate() -> None:
        reasons.append(LLMatcher.validate_grammar(source, limits=parser_limits()))

    _in_large_stack(validate)
    if reasons and reasons[0]:
        raise PromptError(f"{what} cannot be enforced: {_one_line(reasons[0])}")


def why_not(matcher: LLMatcher) -> str:
    """Return the reason why a form cannot be followed, as one line of printable characters."""
    return _one_line(matcher.get_error() or str(matcher.stop_reason()))


def _one_line(text: str) -> str:
    found = re.search(r"^error: (.*)$", text, re.MULTILINE)
    line = found[1] if found else text.strip().partition("\n")[0].removesuffix("<non-verbose/>")
    return "".join(each for each in line.strip() if each.isprintable())[:_LONGEST_REASON]


def _compile(vocabulary: GrammarVocabulary, what: str, source: str) -> LLMatcher:
    made: list[LLMatcher] = []
    failed: list[BaseException] = []

    def compile_it() -> None:
        try:
            matcher = LLMatcher(vocabulary.tree, source, log_level=0, limits=parser_limits())
            # The first step does deferred work, and notices forms that no token can begin.
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
    """Run a function in a thread with a large stack.

    llguidance recurses along chains of rules or references, and a stack overflow ends the process.
    """
    thread = threading.Thread(target=work, name="powerinfer-grammar", daemon=True)
    with _lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
