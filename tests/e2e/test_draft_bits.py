"""Drafts change no bit over HTTP: text, ids, log probabilities and reasons are those without."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from native_cases import KERNELS
from serving import Server, serving
from tiny_models import TINY_EXPERTS, TINY_MODELS, TinyModel, wide, write_model

# Recipes, formats, and which neurons are computed.
KINDS = {
    "dense": ("llama", "q4_0", "off"),
    "exact": ("llama-relu", "f16", "exact"),
    "predictors": ("bamboo", "q4_0", "lowbit:2"),
    "experts": ("mixtral-drelu-transposed", "q8_0", "exact"),
    "recurrent": ("qwen35moe", "q4_0", "off"),
}
SCHEMA: Any = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
FORMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "ignore_eos": True},
    "seeded": {"temperature": 0.8, "ignore_eos": True},
    "schema": {
        "temperature": 0.8,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    },
    "tool": {"temperature": 0.8, "tools": [TOOL], "tool_choice": "required"},
}
CLIENTS = (1, 4, 16)
# Random models say everything once. Of what was said before, a memory of answers knows how it went
# on, which is right, until two answers that were alike part.
DRAFTS = ("--draft", "ngram:1", "--draft-memory")


@dataclass
class Count:
    """Tokens of answers: all of them, and those drafted and accepted."""

    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, usage: dict[str, Any]) -> None:
        details = usage.get("completion_tokens_details", {})
        accepted = details.get("accepted_prediction_tokens", 0)
        self.tokens += usage["completion_tokens"]
        self.drafted += accepted + details.get("rejected_prediction_tokens", 0)
        self.accepted += accepted


def _model(recipe: str, format_name: str) -> TinyModel:
    """A model of which rows are whole blocks, and steps take less time than requests."""
    model = wide((TINY_MODELS | TINY_EXPERTS)[recipe], format_name)
    return replace(
        model,
        hidden_size=64,
        intermediate_size=128,
        head_dim=16,
        delta_rule=(2, 4, 32) if model.delta_rule else None,
        has_vocabulary=True,
        context_length=1024,
    )


def _bodies(form: str, count: int) -> list[dict[str, Any]]:
    """Chats of few words said again and again, whose answers are short and long."""
    draw = random.Random(form)
    found = []
    for number in range(count):
        words = draw.choices(["one", "two", "red", "green", "a dog", "the cat"], k=3)
        content = " ".join(words * draw.randint(1, 3))
        fields = {"seed": number, "max_tokens": draw.randint(12, 48), **FORMS[form]}
        messages = [{"role": "user", "content": content}]
        found.append({"messages": messages, "logprobs": True, "top_logprobs": 2, **fields})
    return found


def _ask(server: Server, body: dict[str, Any], draft: str) -> dict[str, Any]:
    answer = server.post("/v1/chat/completions", {**body, "draft": draft})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    # Drawn for each answer.
    for call in found["choices"][0]["message"].get("tool_calls") or ():
        call.pop("id")
    return found


def _check(server: Server, form: str, num_prompts: int, clients: Sequence[int]) -> Count:
    """Compare answers with drafts, by so many clients at once, with those alone without."""
    bodies = _bodies(form, num_prompts)
    expected = []
    for body in bodies:
        plain = _ask(server, body, "off")
        assert "completion_tokens_details" not in plain["usage"]
        expected.append(plain["choices"])
    count = Count()
    for number in clients:
        with ThreadPoolExecutor(number) as pool:
            answers = list(pool.map(lambda body: _ask(server, body, "ngram:1"), bodies))
        for body, answer, choices in zip(bodies, answers, expected, strict=True):
            assert answer["choices"] == choices, (number, body)
            count.add(answer["usage"])
    return count


def _serve_and_check(
    folder: Path, kind: str, kernels: str, num_prompts: int, clients: Sequence[int]
) -> dict[str, Count]:
    """Check all forms; at the end both right and wrong drafts must have occurred."""
    recipe, format_name, sparsity = KINDS[kind]
    path = write_model(folder / f"{kind}.gguf", _model(recipe, format_name))
    flags = ("-m", str(path), "-t", "1", "-np", "16", "--kernels", kernels, "--sparsity", sparsity)
    with serving(*flags, *DRAFTS) as server:
        counts = {form: _check(server, form, num_prompts, clients) for form in FORMS}
        drafted = sum(count.drafted for count in counts.values())
        accepted = sum(count.accepted for count in counts.values())
        assert 0 < accepted < drafted, counts
        assert server.figure("powerinfer_drafted_tokens_total") == drafted
        assert server.figure("powerinfer_accepted_draft_tokens_total") == accepted
        assert server.figure("powerinfer_decode_steps_total") > 0
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "recurrent"])
def test_a_few_answers(tmp_path: Path, kind: str) -> None:
    _serve_and_check(tmp_path, kind, KERNELS[-1], 10, (1, 4))


@pytest.mark.thorough
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_all_kinds_of_answers(
    tmp_path: Path, kind: str, kernels: str, record_property: Callable[[str, object], None]
) -> None:
    """100 prompts of each form, asked by 1, 4 and 16 clients at once."""
    for form, count in _serve_and_check(tmp_path, kind, kernels, 100, CLIENTS).items():
        record_property("drawn", f"{form}: {count}")
