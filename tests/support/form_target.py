"""What fuzzing forms runs: compile one, and write some tokens by it; only refusals come out.

A file begins with the kind of the form on a line of its own.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np

from grammar_cases import small_tokenizer
from powerinfer.errors import PromptError
from powerinfer.sampling.grammar.constraint import Constraint
from powerinfer.sampling.sampling_params import FORMS, SamplingParams
from powerinfer.tokenizer.tokenizer import Tokenizer
from powerinfer.values import FloatArray

__all__ = ["SOURCES", "follow", "read_everything", "seeds"]

_STEPS = 12
SOURCES: dict[str, list[str]] = {
    "json_schema": [
        json.dumps(
            {
                "type": "object",
                "properties": {
                    "a": {"type": "string", "pattern": "^a{1,3}$"},
                    "b": {"type": "array", "items": {"$ref": "#/$defs/c"}, "maxItems": 2},
                    "d": {"type": "number", "minimum": -1.5, "multipleOf": 0.25},
                },
                "required": ["a", "b"],
                "additionalProperties": {"anyOf": [{"const": None}, {"enum": [1, "x"]}]},
                "$defs": {"c": {"allOf": [{"type": "integer"}, {"maximum": 7}]}},
            }
        )
    ],
    "regex": [r"(a|b)*c{2,5}[^\d\]x-z]+(?i:q)?.\p{L}", "^yes|no$"],
    "grammar": [
        '# a\nroot ::= x ("," x){0,2} |\n  "\\"" [^"\\\\\\x00-\\x1F]* "\\""\n'
        'x ::= "(" root ")" | [0-9]+\n',
        '%llguidance {}\nstart: A b | <[3]>\nA: /[a-z]+/ & ~/ab/\nb: %json {"type": "null"}\n',
    ],
}


def seeds() -> list[bytes]:
    """A valid form of each kind."""
    return [f"{kind}\n{source}".encode() for kind in FORMS for source in SOURCES[kind]]


def follow(kind: str, source: str) -> bool:
    """Write some tokens that a form allows; whether it was not refused."""
    tokenizer = _tokenizer()
    try:
        # The names are those of the class.
        params = SamplingParams(**{kind: source})  # type: ignore[arg-type]
        constraint = Constraint(tokenizer, params)
        for row in _logits():
            if constraint.is_complete:
                break
            masked = constraint.mask(row)
            token_id = int(masked.argmax())
            assert masked[token_id] > -np.inf, "no token is allowed"
            constraint.accept(token_id)
    except PromptError as error:
        message = str(error)
        assert message.isprintable(), message
        assert len(message) < 1000
        return False
    return True


def read_everything(path: Path) -> None:
    """Follow the form in a file."""
    kind, _, source = path.read_bytes().decode("utf-8", "replace").partition("\n")
    follow(kind if kind in FORMS else FORMS[len(kind) % len(FORMS)], source)


@cache
def _tokenizer() -> Tokenizer:
    return small_tokenizer("byte level")


@cache
def _logits() -> FloatArray:
    size = (_STEPS, _tokenizer().vocab_size)
    return np.random.default_rng(1).normal(size=size).astype(np.float32)
