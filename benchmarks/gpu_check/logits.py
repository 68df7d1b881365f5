"""A planted model in the states of its layers: the CPU's logits, and the same bits every time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpu_check.findings import Finding, Setting, Verdict, attempted, verdict_of
from gpu_check.launches import counting
from gpu_check.planted_models import PlantedModel, place_by_plan, plan_of_state
from powerinfer.gguf import open_gguf
from powerinfer.models import Model, load_model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.values import FloatArray
from tolerances import TOLERANCES

__all__ = ["check_logits", "closeness", "sameness"]

STATES = "SFA"
_PROMPT = (300, 411, 265, 299, 307, 280, 333, 290, 402, 271, 287)
# Eager steps before one is recorded, and the recorded one.
_BEFORE_REPLAYS = 4


@dataclass(frozen=True)
class _Lengths:
    """Decode steps compared with the CPU, steps until they are replays, replays compared."""

    compared: int
    before: int
    replayed: int

    @property
    def together(self) -> int:
        """Steps of one sequence."""
        return self.before + self.replayed


def check_logits(planted: PlantedModel, setting: Setting) -> Iterator[Finding]:
    """Each state in turn.

    Args:
        planted: made already.
        setting: where to run it.
    """
    cpu = NativeOps(setting.threads)
    file = open_gguf(planted.path(setting.folder))
    model = load_model(file, cpu, context_length=256)
    lengths = _Lengths(8, _BEFORE_REPLAYS, 100) if setting.is_cuda else _Lengths(1, 0, 1)
    expected = _prompt_and_decode(model, lengths.compared)
    for state in STATES:
        what = f"{planted.name} in state {state}"
        plan = plan_of_state(model, state)
        place = partial(place_by_plan, cpu, model, plan, setting.device)
        given = _State(what, place, lengths, setting.is_cuda)
        close = partial(closeness, expected=expected, format_name=planted.format_name)
        yield from attempted(what, _check_state(given, close))


@dataclass(frozen=True)
class _State:
    """A model in one state.

    Attributes:
        what: names it.
        place: makes it; `handoff="eager"` makes it run without being recorded.
        lengths: of what is run.
        is_cuda: whether steps can be recorded.
    """

    what: str
    place: Callable[..., Model]
    lengths: _Lengths
    is_cuda: bool


def _check_state(given: _State, close: Callable[[str, FloatArray], Finding]) -> Iterator[Finding]:
    what, lengths = given.what, given.lengths
    placed = given.place()
    yield close(f"{what}, logits", _prompt_and_decode(placed, lengths.compared))
    recorded = _decode(placed, lengths.together)
    again = _decode(placed, lengths.together)
    yield sameness(f"{what}, {lengths.replayed} steps again", recorded, again)
    del placed
    if not given.is_cuda:
        yield Finding(f"{what}, recorded", Verdict.SKIPPED, "no CUDA")
        return
    eager = _decode(given.place(handoff="eager"), lengths.together)
    yield sameness(f"{what}, recorded against eager", recorded, eager)
    yield _recording(f"{what}, recorded", given.place())


def _prompt_and_decode(model: Model, num_steps: int) -> FloatArray:
    """Logits of a prompt of some tokens and of steps after it: f32[tokens, vocab_size]."""
    cache = model.new_cache()
    logits = [model.forward(cache.batch([(0, list(_PROMPT), 0)], [True]), cache)]
    for position in range(len(_PROMPT), len(_PROMPT) + num_steps):
        logits.append(model.forward(cache.batch([(0, [260 + position], position)], [False]), cache))
    return np.concatenate(logits)


def _decode(model: Model, num_steps: int) -> FloatArray:
    """Logits of so many steps of one sequence: f32[num_steps, vocab_size]."""
    cache = model.new_cache()
    steps = [
        model.forward(cache.batch([(0, [260 + position % 200], position)], [False]), cache)
        for position in range(num_steps)
    ]
    return np.concatenate(steps)


def closeness(what: str, got: FloatArray, expected: FloatArray, format_name: str) -> Finding:
    """Whether logits are the CPU's within the tolerance of its arithmetic.

    Args:
        what: names it.
        got: f32[tokens, vocab_size].
        expected: the same of the CPU.
        format_name: of the weights.
    """
    # Both devices round inputs of packed weights to int8, but sum in other orders.
    name = "hybrid" if format_name in ("f16", "f32") else "native quantized"
    tolerance = TOLERANCES[name]
    spread = float(expected.std()) or 1.0
    error = np.abs(got.astype(np.float64) - expected) / spread
    largest, mean = float(error.max()), float(error.mean())
    # Not "greater than": a NaN is no agreement.
    is_right = largest <= tolerance.largest and mean <= tolerance.mean
    same_tokens = float((got.argmax(axis=1) == expected.argmax(axis=1)).mean())
    text = (
        f"largest difference {largest:.2g} of the spread (limit {tolerance.largest:g}), mean "
        f"{mean:.2g} (limit {tolerance.mean:g}), {same_tokens:.0%} of the likeliest tokens alike"
    )
    figures = {"largest": largest, "mean": mean, "same_tokens": same_tokens}
    return Finding(what, verdict_of(is_right), text, figures)


def sameness(what: str, got: FloatArray, expected: FloatArray) -> Finding:
    """Whether the logits of all steps, f32[num_steps, vocab_size], have the same bits."""
    differing = np.flatnonzero((got != expected).any(axis=1))
    if not len(differing):
        return Finding(what, Verdict.OK, f"the same bits in {len(got)} steps")
    largest = float(np.abs(got - expected).max())
    text = f"{len(differing)} of {len(got)} steps differ, step {differing[0]} first, by {largest:g}"
    return Finding(what, Verdict.FAILED, text, {"largest": largest, "steps": len(differing)})


def _recording(what: str, placed: Model) -> Finding:
    """Whether a step after the first ones is replayed, by what Python still launches."""
    cache = placed.new_cache()
    for position in range(_BEFORE_REPLAYS):
        placed.forward(cache.batch([(0, [300], position)], [False]), cache)
    with counting() as launches:
        placed.forward(cache.batch([(0, [300], _BEFORE_REPLAYS)], [False]), cache)
    text = f"{launches.replays} graphs and {launches.kernels} kernels launched by Python a step"
    figures = {"replays": launches.replays, "kernels": launches.kernels}
    is_right = launches.is_recorded and launches.replays > 0
    return Finding(what, verdict_of(is_right), f"{text}, {placed.ops.handoff_name}", figures)
