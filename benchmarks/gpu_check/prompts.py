"""A prompt of 512 tokens, with predictors and without: how long it takes, and the CPU's logits."""

import time
from collections.abc import Iterator

import numpy as np

from gpu_check.findings import Finding, Setting, verdict_of
from gpu_check.launches import counting
from gpu_check.planted_models import CONTEXT, PlantedModel, place_by_plan, plan_of_state
from powerinfer.gguf import open_gguf
from powerinfer.models import Model, load_model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.values import FloatArray
from tolerances import TOLERANCES

__all__ = ["check_prompts"]


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
        expected, cpu_s = _prompt(model, num_tokens)
        for state in "SF" if setting.is_cuda else "S":
            placed = place_by_plan(cpu, model, plan_of_state(model, state), setting.device)
            # The first compiles kernels.
            if setting.is_cuda:
                _prompt(placed, num_tokens)
            with counting() as launches:
                got, seconds = _prompt(placed, num_tokens)
            what = f"{planted.name}, prompt of {num_tokens} {name}, state {state}"
            error = np.abs(got.astype(np.float64) - expected) / (float(expected.std()) or 1.0)
            largest, mean = float(error.max()), float(error.mean())
            quantized = planted.format_name not in ("f16", "f32")
            limit = TOLERANCES["native quantized" if quantized else "hybrid"]
            text = (
                f"{seconds * 1e3:.1f} ms ({cpu_s * 1e3:.0f} on the CPU alone), "
                f"{launches.kernels} kernels launched by Python, largest difference {largest:.2g} "
                f"of the spread (limit {limit.largest:g}), mean {mean:.2g} (limit {limit.mean:g})"
            )
            figures = {
                "seconds": seconds,
                "cpu_s": cpu_s,
                "kernels": launches.kernels,
                "largest": largest,
                "mean": mean,
            }
            is_right = largest <= limit.largest and mean <= limit.mean
            yield Finding(what, verdict_of(is_right), text, figures)
            del placed


def _prompt(model: Model, num_tokens: int) -> tuple[FloatArray, float]:
    """The last token's logits, and seconds."""
    cache = model.new_cache()
    ids = [260 + (7 * number) % 250 for number in range(num_tokens)]
    last = np.array([num_tokens - 1], np.int32)
    started = time.perf_counter()
    logits = model.forward(cache.batch([(0, ids, 0)]), cache, logits_for=last)
    return logits, time.perf_counter() - started
