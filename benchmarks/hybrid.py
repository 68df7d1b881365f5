r"""Measures decoding on CPU and GPU together against layer offload, over budgets of GPU memory.

    python benchmarks/hybrid.py --shape relullama-7b --device cuda -o hybrid-relullama-7b.json

The model is planted in memory (see planting/in_memory.py). Sides: two_devices/sides.py. All of
them run in one process on the same weights, one after the other; a step is timed by itself, the
median counts. Budgets are shares of the model's bytes, for weights, keys and values; what using a
GPU takes by itself comes on top, for every side. ``--device cpu`` runs the same code with
interpreted kernels, for testing the benchmark.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpu_check.launches import Launches, counting
from gpu_check.planted_models import place_by_plan
from gpu_machine import describe_gpu
from planting.in_memory import planted_in_memory
from planting.recipe import Knobs, format_named
from planting.shapes import SHAPES
from powerinfer.errors import PowerInferError
from powerinfer.models import Model, load_model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.placement.problem import ModelSizes, PlacementProblem
from powerinfer.placement.step_time import step_s
from two_devices.parts import (
    MeasuredSpeeds,
    handoff_figures,
    measured_speeds,
    predicted_frequencies,
    sizes_of,
)
from two_devices.sides import SIDES, Side, plan_of

__all__ = ["compare", "options_of", "row_text"]

CONTEXT = 128
WARM_UP_STEPS = 6
# Slow sides stop early, so that a whole comparison takes minutes.
LEAST_STEPS, MOST_SECONDS = 6, 3.0
DEFAULT_LAYERS = {"relullama-7b": 32, "falcon-40b": 20}
# What is run at which share of the model's bytes, the most important first, in case the time ends;
# side c and d do not depend on the budget.
RUNS = (
    ("a", 1 / 3),
    ("b", 1 / 3),
    ("b", 1.2),
    ("a", 1.2),
    ("e", 1.2),
    ("a", 0.5),
    ("b", 0.5),
    ("c", 0.6),
    ("a", 0.6),
    ("d", 0.6),
    ("a", 0.1),
    ("a", 0.8),
)
# Predicted over measured speed: within 20 %.
PREDICTED = (0.8, 1.2)
# (side, its fraction, other side, its fraction, wanted ratio by shape)
RATIOS: tuple[tuple[str, float, str, float, dict[str, float]], ...] = (
    ("a", 1 / 3, "b", 1 / 3, {"relullama-7b": 3.2, "falcon-40b": 10.0}),
    ("a", 1 / 3, "c", 0.6, {}),
    ("a", 0.5, "b", 0.5, {"relullama-7b": 6.0, "falcon-40b": 15.0}),
    ("a", 0.5, "c", 0.6, {}),
    ("a", 0.6, "d", 0.6, {"relullama-7b": 1.3, "falcon-40b": 1.3}),
    ("a", 1.2, "b", 1.2, {"relullama-7b": 1.3, "falcon-40b": 2.0}),
    ("e", 1.2, "b", 1.2, {"relullama-7b": 1.3, "falcon-40b": 2.0}),
)


@dataclass(frozen=True)
class Bench:
    """What all runs share."""

    cpu: NativeOps
    models: dict[str | None, Model]
    sizes: dict[str | None, ModelSizes]
    problem: PlacementProblem
    model_bytes: int
    device: str
    steps: int

    def problem_of(self, side: Side, fraction: float) -> PlacementProblem:
        """The problem with the budget and the sizes of a side."""
        budget = self.problem.sizes.overhead_bytes + int(fraction * self.model_bytes)
        stats = self.problem.stats
        if side.sparsity == "off":
            stats = replace(stats, frequency=np.ones_like(stats.frequency))
        return replace(
            self.problem, sizes=self.sizes[side.sparsity], stats=stats, budget_bytes=budget
        )


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line, or arguments in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="relullama-7b")
    parser.add_argument("--layers", type=int, help="default: 32 of relullama-7b, 20 of falcon-40b")
    parser.add_argument("--format", default="f16", help="f32 f16 q8_0 q4_0")
    parser.add_argument("--predictor-format", default="q4_0")
    parser.add_argument("--rank", type=int, help="hidden size of the predictor")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, help="default: the processors less two")
    parser.add_argument("--steps", type=int, default=32, help="timed decode steps of a run")
    parser.add_argument("--only", default="", help="sides to run, such as ab")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser.parse_args(arguments)


def _bench(options: argparse.Namespace) -> tuple[Bench, dict[str, Any]]:
    """Make the model, measure the machine; also what the result file says of both."""
    shape = SHAPES[options.shape]
    layers = options.layers or DEFAULT_LAYERS.get(options.shape, shape.num_layers)
    shape = replace(shape, num_layers=layers, context_length=CONTEXT)
    is_tiny = shape.hidden_size <= 256
    knobs = Knobs(
        density=shape.density,
        rank=options.rank or (128 if is_tiny else 1024),
        noise=0.02,
        margin=0.15,
        exponent=0.9,
        weight_format=format_named(options.format),
        predictor_format=format_named(options.predictor_format),
    )
    file, layers_made = planted_in_memory(shape, knobs, format_named(options.format))
    _say("model made")
    threads = options.threads or max(1, (os.cpu_count() or 1) - 2)
    ops = NativeOps(threads)
    models = {
        sparsity: load_model(file, ops, sparsity=sparsity, context_length=CONTEXT)
        for sparsity in (None, "off", "exact")
    }
    sizes = {sparsity: sizes_of(model) for sparsity, model in models.items()}
    stats = predicted_frequencies(models[None], num_tokens=32 if is_tiny else 128)
    _say("activations counted")
    speeds = measured_speeds(options.device, ops, models["off"], options.format)
    _say("speeds measured")
    problem = PlacementProblem("", sizes[None], stats, speeds.cost, 0)
    model_bytes = sum(tensor.num_bytes for tensor in file.tensors.values())
    bench = Bench(ops, models, sizes, problem, model_bytes, options.device, options.steps)
    means = {
        name: float(np.mean([row[name] for row in layers_made]))
        for name in ("density", "predicted_density", "recall", "ffn_error")
    }
    return bench, {
        "shape": options.shape,
        "layers": shape.num_layers,
        "format": options.format,
        "model_bytes": model_bytes,
        "planted": means | {"rank": knobs.rank, "predictor_format": options.predictor_format},
        "threads": threads,
        "speeds": _speeds_report(speeds),
        "handoff": handoff_figures(options.device, bench.cpu),
        "machine": describe_gpu(options.device),
    }


def _speeds_report(speeds: MeasuredSpeeds) -> dict[str, float]:
    cost = speeds.cost
    return {
        "gpu_read": cost.gpu.read_bytes_per_s,
        "gpu_gather": cost.gpu.gather_bytes_per_s,
        "gpu_launch_s": cost.gpu.launch_s,
        "cpu_read": cost.cpu.read_bytes_per_s,
        "cpu_gather": cost.cpu.gather_bytes_per_s,
        "gpu_plain_read": speeds.gpu_plain_read,
        "cpu_plain_read": speeds.cpu_plain_read,
        "cpu_dense_decode": speeds.cpu_dense_decode,
        "handoff_s": cost.handoff_s,
        "run_s": cost.run_s,
        "transfer": cost.transfer_bytes_per_s,
    }


def _run(bench: Bench, side: Side, fraction: float) -> dict[str, Any]:
    """Place, decode, give the memory back."""
    problem = bench.problem_of(side, fraction)
    plan = plan_of(side, problem)
    started = time.perf_counter()
    placed = place_by_plan(bench.cpu, bench.models[side.sparsity], plan, bench.device)
    placed_s = time.perf_counter() - started
    times, num_bytes, launches = _decode(placed, bench.steps)
    median = float(np.median(times))
    row = {
        "side": side.name,
        "summary": side.summary,
        "fraction": fraction,
        "budget_bytes": problem.budget_bytes,
        "gpu_bytes": problem.sizes.placed_bytes(plan),
        "hot_share": float(np.mean([len(layer.hot) / plan.num_neurons for layer in plan.layers])),
        "gpu_share": problem.stats.covered_share(plan),
        "place_s": placed_s,
        "step_s": {
            "median": median,
            "p10": float(np.quantile(times, 0.1)),
            "p90": float(np.quantile(times, 0.9)),
        },
        "tokens_per_s": 1 / median,
        "predicted_tokens_per_s": 1 / step_s(problem, plan),
        "bytes_per_token": num_bytes,
        "gb_per_s": num_bytes / median / 1e9,
        "handoff": placed.ops.handoff_name,
        "graphs_per_step": launches.replays,
        "kernels_launched_per_step": launches.kernels,
        "is_recorded": launches.is_recorded,
    }
    del placed
    gc.collect()
    return row


def _decode(model: Model, steps: int) -> tuple[np.ndarray, float, Launches]:
    """Seconds of every timed step, bytes read by one, and what Python launched in one more."""
    random = np.random.default_rng(3)
    cache = model.new_cache()
    tokens = random.integers(259, model.config.vocab_size, WARM_UP_STEPS + steps)
    times = []
    read_before = 0
    began = time.perf_counter()
    for position, token in enumerate(tokens):
        if position == WARM_UP_STEPS:
            read_before = model.ops.counters.bytes_read
            began = time.perf_counter()
        if position >= WARM_UP_STEPS + LEAST_STEPS and time.perf_counter() - began > MOST_SECONDS:
            break
        started = time.perf_counter()
        model.forward(cache.batch([(0, [int(token)], position)], [False]), cache)
        times.append(time.perf_counter() - started)
    timed = np.array(times[WARM_UP_STEPS:])
    ffn_bytes = (model.ops.counters.bytes_read - read_before) / len(timed)
    num_bytes = model.bytes_per_token(len(times), ffn_bytes=ffn_bytes)
    with counting() as launches:
        model.forward(cache.batch([(0, [300], len(times))], [False]), cache)
    return timed, num_bytes, launches


def _ratios(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What the runs so far say about the targets."""
    measured = [row for row in result["rows"] if "error" not in row]
    rows = {(row["side"], row["fraction"]): row for row in measured}
    found = []
    for side, fraction, other, other_fraction, wanted in RATIOS:
        ours, theirs = rows.get((side, fraction)), rows.get((other, other_fraction))
        if ours is not None and theirs is not None:
            value = ours["tokens_per_s"] / theirs["tokens_per_s"]
            what = f"{side} at {fraction:.0%} over {other} at {other_fraction:.0%}"
            found.append(_ratio(what, value, wanted.get(result["shape"])))
    speeds = result["speeds"]
    found.append(
        _ratio(
            "dense on the CPU alone over a plain read of its memory: below, b is too slow",
            speeds["cpu_dense_decode"] / speeds["cpu_plain_read"],
            0.8,
        )
    )
    whole = rows.get(("b", 1.2))
    if whole is not None:
        value = whole["gb_per_s"] * 1e9 / speeds["gpu_plain_read"]
        found.append(_ratio("dense in GPU memory over a plain read of it", value, 0.7))
    for (side, fraction), row in rows.items():
        value = row["predicted_tokens_per_s"] / row["tokens_per_s"]
        what = f"{side} at {fraction:.0%}: predicted over measured"
        found.append(_ratio(what, value, *PREDICTED))
    return found


def _ratio(
    what: str, value: float, wanted: float | None, most: float | None = None
) -> dict[str, Any]:
    return {"what": what, "value": value, "wanted": wanted, "most": most}


def row_text(row: dict[str, Any]) -> str:
    """Return what came of a row in words."""
    if "error" in row:
        return str(row["error"])
    recorded = "recorded" if row["is_recorded"] else "not recorded"
    return f"{row['tokens_per_s']:.2f} tokens/s, {row['summary']}, {row['handoff']}, {recorded}"


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def compare(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run every row; what was measured so far is written, then given out, after each.

    A row that fails has an `error` instead of figures, and does not end the others.
    """
    bench, result = _bench(options)
    result |= {"rows": [], "ratios": []}
    for name, fraction in RUNS:
        if options.only and name not in options.only:
            continue
        try:
            row = _run(bench, SIDES[name], fraction)
        except (PowerInferError, RuntimeError) as error:
            row = {"side": name, "summary": SIDES[name].summary, "fraction": fraction}
            row["error"] = f"{type(error).__name__}: {error}"
        result["rows"].append(row)
        result["ratios"] = _ratios(result)
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        yield result


def main() -> None:
    """Command line."""
    for result in compare(options_of()):
        row = result["rows"][-1]
        _say(f"{row['side']} at {row['fraction']:.0%}: {row_text(row)}")


if __name__ == "__main__":
    main()
