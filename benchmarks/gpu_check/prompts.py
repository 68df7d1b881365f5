"""A prompt of 512 tokens, with predictors and without: how long it takes, and the CPU's logits."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpu_check.findings import Finding, Setting, attempted
from gpu_check.launches import counting
from gpu_check.logits import closeness
from gpu_check.planted_models import CONTEXT, PlantedModel, place_by_plan, plan_of_state
from powerinfer.gguf import open_gguf
from powerinfer.models import Model, load_model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.values import FloatArray

__all__ = ["check_prompts"]

_MOST_INTERPRETED = 16


def check_prompts(planted: PlantedModel, setting: Setting) -> Iterator[Finding]:
    """A third of the neurons on the GPU, the others sent to it; then all of them there.

    Args:
        planted: made already.
        setting: where to run it.
    """
    cpu = NativeOps(setting.threads)
    file = open_gguf(planted.path(setting.folder))
    num_tokens = 512 if setting.is_cuda else 9
    for kind, name in ((None, "with predictors"), ("off", "without predictors")):
        model = load_model(file, cpu, sparsity=kind, context_length=CONTEXT)
        on_cpu = _prompt(model, num_tokens)
        for state in "SF" if setting.is_cuda else "S":
            what = f"{planted.name}, prompt of {num_tokens} {name}, state {state}"
            place = partial(place_by_plan, cpu, model, plan_of_state(model, state), setting.device)
            found = _check_prompt(what, place, on_cpu, planted.format_name)
            yield from attempted(what, found)


@dataclass(frozen=True)
class _Prompt:
    """The last token's logits, and what it took to compute them."""

    logits: FloatArray
    num_tokens: int
    seconds: float


def _check_prompt(
    what: str, place: Callable[[], Model], on_cpu: _Prompt, format_name: str
) -> Iterator[Finding]:
    placed = place()
    if on_cpu.num_tokens > _MOST_INTERPRETED:
        # Compiles kernels.
        _prompt(placed, on_cpu.num_tokens)
    with counting() as launches:
        got = _prompt(placed, on_cpu.num_tokens)
    close = closeness(what, got.logits, on_cpu.logits, format_name)
    text = (
        f"{got.seconds * 1e3:.1f} ms ({on_cpu.seconds * 1e3:.0f} on the CPU alone), "
        f"{launches.kernels} kernels launched by Python, {close.text}"
    )
    figures = {"seconds": got.seconds, "cpu_s": on_cpu.seconds, "kernels": launches.kernels}
    yield Finding(what, close.verdict, text, {**close.figures, **figures})


def _prompt(model: Model, num_tokens: int) -> _Prompt:
    cache = model.new_cache()
    ids = [260 + (7 * number) % 250 for number in range(num_tokens)]
    last = np.array([num_tokens - 1], np.int32)
    started = time.perf_counter()
    logits = model.forward(cache.batch([(0, ids, 0)], [True]), cache, logits_for=last)
    return _Prompt(logits, num_tokens, time.perf_counter() - started)
