"""Grammars in GBNF allow exactly the texts that their rules derive, whatever the lexer does."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grammar_cases import small_tokenizer, written
from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.constraint import Constraint
from powerinfer.sampling.grammar.gbnf import gbnf_to_lark
from powerinfer.sampling.grammar.gbnf_nodes import Alt, Chars, Node, Ref, Rep, Rules, Seq
from powerinfer.sampling.grammar.gbnf_parser import parse_gbnf
from powerinfer.sampling.sampling_params import SamplingParams

LETTERS = "abc"
LONGEST = 4
TEXTS = tuple(
    "".join(letters) for length in range(LONGEST + 1) for letters in product(LETTERS, repeat=length)
)


def derived(rules: Rules) -> set[str]:
    """All texts of at most `LONGEST` of the letters that the rules derive, by the definition."""
    known: dict[str, set[str]] = {name: set() for name in rules}
    while True:
        before = {name: set(texts) for name, texts in known.items()}
        for name, body in rules.items():
            known[name] |= _texts(body, known)
        if known == before:
            return known["root"]


def _texts(node: Node, known: dict[str, set[str]]) -> set[str]:
    if isinstance(node, Chars):
        return {each for each in LETTERS if any(a <= ord(each) <= b for a, b in node.ranges)}
    if isinstance(node, Ref):
        return known[node.name]
    if isinstance(node, Alt):
        return {text for item in node.items for text in _texts(item, known)}
    if isinstance(node, Seq):
        joined = {""}
        for each in node.items:
            joined = _joined(joined, _texts(each, known))
        return joined
    assert isinstance(node, Rep)
    item = _texts(node.item, known)
    power, found = {""}, {""} if node.low == 0 else set()
    # An empty item stands for any number of itself, so `LONGEST` more are always enough.
    most = node.low + LONGEST if node.high is None else node.high
    for count in range(1, most + 1):
        power = _joined(power, item)
        if count >= node.low:
            found |= power
    return found


def _joined(first: set[str], second: set[str]) -> set[str]:
    return {a + b for a in first for b in second if len(a + b) <= LONGEST}


def accepted(grammar: str) -> set[str]:
    """The same texts as the constraint has them: every letter allowed, and then the end."""
    tokenizer = small_tokenizer("byte level")
    ids = {each: tokenizer.encode_inside(each)[0] for each in LETTERS}
    (end,) = tokenizer.eog_ids
    zeros = np.zeros(tokenizer.vocab_size, np.float32)
    constraint = Constraint(tokenizer, SamplingParams(grammar=grammar))
    found: set[str] = set()

    def visit(text: str) -> None:
        if constraint.is_complete:
            found.add(text)
            return
        allowed = constraint.mask(zeros) == 0
        if allowed[end]:
            found.add(text)
        for letter, token_id in ids.items():
            if len(text) < LONGEST and allowed[token_id]:
                kept = constraint.state
                constraint.accept(token_id)
                visit(text + letter)
                constraint.state = kept

    visit("")
    return found


SETS = st.sampled_from(
    ["[a]", "[ab]", "[^a]", "[b-c]", '"a"', '"b"', '"ab"', '"abc"', '"ca"', '""']
)
NAMES = st.sampled_from(["root", "x", "y", "z"])
TIMES = st.sampled_from(["*", "+", "?", "{0}", "{2}", "{1,2}", "{0,3}", "{2,}"])


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda items: f"({' | '.join(items)})"),
        st.tuples(inner, TIMES).map(lambda pair: f"({pair[0]}){pair[1]}"),
    )


BODIES = st.recursive(st.one_of(SETS, SETS, NAMES), _wider, max_leaves=6)
GRAMMARS = st.tuples(BODIES, BODIES, BODIES, BODIES).map(
    lambda bodies: "\n".join(
        f"{name} ::= {body}" for name, body in zip(("root", "x", "y", "z"), bodies, strict=True)
    )
)


@pytest.mark.slow
@given(grammar=GRAMMARS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_grammar_allows_what_its_rules_derive(grammar: str) -> None:
    wanted = derived(parse_gbnf(grammar))
    try:
        found = accepted(grammar)
    except PromptError as error:
        # Rules that derive no text at all, and ambiguity beyond llguidance's limits.
        assert not wanted or "further" in str(error) or "NoExtension" in str(error), grammar
        return
    assert found == wanted, (grammar, gbnf_to_lark(grammar))


CASES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "a lexeme must leave what follows": (
        'root ::= [ab]+ "b" rest\nrest ::= "c" rest | "c"',
        ("abc", "bbcc", "aabc"),
        ("bc", "ac", "ab"),
    ),
    "a longer literal must not hide a shorter one": (
        'root ::= ("a" | "ab") tail\ntail ::= "b" tail | "c"',
        ("abc", "ac", "abbc"),
        ("ab", "a"),
    ),
    "keywords and names": (
        'root ::= "ab" root | [a-c]+ "c"',
        ("abcc", "cc", "aabc", "abac"),
        ("ab", "c", "a"),
    ),
    "recursion without lexemes": ('root ::= "a" root "b" | ""', ("", "ab", "aabb"), ("a", "ba")),
    "no times": (
        'root ::= "a"{0} root2 [c]{0,0}\nroot2 ::= "b"{0} | "b" root2',
        ("", "bb"),
        ("a", "c"),
    ),
    "counts": ('root ::= "a"{2} ("b"{0,1} root)?', ("aa", "aaaa", "aabaa"), ("a", "aab", "aaa")),
    "comments and lines": (
        '# first\nroot ::= # rest\n  "a" |\n  x\n  | "c"\nx ::= ( "b"\n "b" )\n\n# end',
        ("a", "bb", "c"),
        ("b", ""),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_known_grammars(name: str) -> None:
    grammar, inside, outside = CASES[name]
    texts = derived(parse_gbnf(grammar))
    found = accepted(grammar)
    assert found == texts
    assert {text for text in inside if len(text) <= LONGEST} <= found
    assert not found & set(outside)


def test_escapes_sets_and_counts_of_the_notation() -> None:
    def ranges(item: str) -> Any:
        node = parse_gbnf(f"root ::= {item}")["root"]
        assert isinstance(node, Chars)
        return node.ranges

    assert ranges(r'"\n"') == ((10, 10),)
    assert ranges(r'"\x41"') == ((0x41, 0x41),)
    assert ranges(r'"é"') == ((0xE9, 0xE9),)
    assert ranges(r'"\U0001F600"') == ((0x1F600, 0x1F600),)
    assert ranges(r"[\]\\a-cb-e-]") == ((45, 45), (92, 93), (97, 101))
    assert ranges("[^a-z]") == ((0, 96), (123, 0x10FFFF))
    assert ranges(".") == ((0, 0x10FFFF),)


@pytest.mark.parametrize("kind", ["sentencepiece", "byte level", "no end"])
def test_characters_of_several_bytes(kind: str) -> None:
    grammar = r'root ::= [é-ü] "日" [^\x00-\x7F] . "/" [\]"\\]'
    for seed in range(5):
        text = written(small_tokenizer(kind), seed, grammar=grammar)
        assert text is not None
        assert "é" <= text[0] <= "ü"
        assert text[1] == "日"
        assert ord(text[2]) > 0x7F
        assert text[4] == "/"
        assert text[5] in ']"\\'
        assert len(text) == 6


def test_tokens_of_the_vocabulary_by_name_and_number() -> None:
    tokenizer = small_tokenizer("byte level")
    (end,) = tokenizer.eog_ids
    for item in (f"<[{end}]>", "<|end|>"):
        constraint = Constraint(tokenizer, SamplingParams(grammar=f'root ::= "a" {item} "b"'))
        (a,) = tokenizer.encode_inside("a")
        constraint.accept(a)
        allowed = constraint.mask(np.zeros(tokenizer.vocab_size, np.float32)) == 0
        assert np.flatnonzero(allowed).tolist() == [end]
