"""What is checked, by name, and in which part: `logits relullama-7b-f16` is a kind and its subject.

A check looks at one thing in a process of its own and gives out what it finds as it goes.
"""

from collections.abc import Callable
from functools import partial

from gpu_check.bench import check_bench
from gpu_check.device_tests import check_memcheck, check_tests
from gpu_check.findings import Check
from gpu_check.logits import check_logits
from gpu_check.memory import check_memory
from gpu_check.peers import check_peers
from gpu_check.planted_models import MODELS, TINY, PlantedModel
from gpu_check.programs import check_programs
from gpu_check.prompts import check_prompts
from gpu_check.replays import check_replays

__all__ = ["PARTS", "check_named", "names_of", "planted_of"]

_PLANTED: dict[str, Callable[..., object]] = {
    "logits": check_logits,
    "memory": check_memory,
    "prompts": check_prompts,
    "replays": check_replays,
}
_OTHERS: dict[str, Callable[..., object]] = {
    "bench": check_bench,
    "memcheck": check_memcheck,
    "peers": check_peers,
    "tests": check_tests,
}
_PROGRAMS = "programs"

# The most important first: what the time does not suffice for is said to be missing.
PARTS = {
    "steps": (
        "tests test_graph",
        "logits relullama-7b-f16",
        "replays relullama-7b-f16",
        "bench relullama-7b",
        "logits relullama-7b-q4_0",
        "replays relullama-7b-q4_0",
    ),
    "peers": ("peers f16", "bench falcon-40b", "peers q4_0", "peers q4_k"),
    "rest": (
        "tests all",
        _PROGRAMS,
        "memory relullama-7b-f16",
        "prompts relullama-7b-f16",
        "logits falcon-40b-q4_0",
        "prompts falcon-40b-q4_0",
        "memory falcon-40b-q4_0",
        "logits relullama-7b-q8_0",
        "logits falcon-40b-f16",
        "logits falcon-40b-q8_0",
        "replays falcon-40b-q8_0",
        "replays falcon-40b-f16",
        "memcheck test_ffn",
        "memcheck test_attention",
    ),
}
# Without a GPU kernels are interpreted, which takes minutes even for the model of the package.
_TINY_PARTS = {
    "steps": ("tests test_graph", "logits tiny-f16", "replays tiny-f16", "bench tiny"),
    "peers": ("peers f16", "bench tiny-falcon"),
    "rest": (
        f"{_PROGRAMS} tiny-f16",
        "memory tiny-f16",
        "prompts tiny-f16",
        "tests all",
        "logits tiny-falcon-q4_0",
        "memcheck test_ffn",
    ),
}


def names_of(part: str, *, is_cuda: bool) -> tuple[str, ...]:
    """Return the checks of a part, for a GPU or for none."""
    return (PARTS if is_cuda else _TINY_PARTS)[part]


def check_named(name: str) -> Check:
    """Return the check of a name."""
    kind, _, subject = name.partition(" ")
    if kind == _PROGRAMS:
        return partial(check_programs, planted_of(name))
    if kind in _PLANTED:
        return partial(_PLANTED[kind], planted_of(name))  # type: ignore[return-value]
    return partial(_OTHERS[kind], subject)  # type: ignore[return-value]


def planted_of(name: str) -> PlantedModel | None:
    """Return the planted model that a check needs."""
    kind, _, subject = name.partition(" ")
    if kind in _OTHERS or not subject:
        return None
    return next(model for model in (*MODELS, *TINY) if model.name == subject)
