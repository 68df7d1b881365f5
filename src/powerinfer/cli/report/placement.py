"""Output on a placement: the table of parts and devices, predictions, JSON."""

import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import click

from powerinfer.cli.report.tables import percent, print_paragraph, print_table
from powerinfer.placement.step_time import layer_s, step_s
from powerinfer.store.memory import format_bytes

if TYPE_CHECKING:
    from powerinfer.loading.loader import LoadedModel
    from powerinfer.models.model_file import ModelFile
    from powerinfer.offload.place import Placement
    from powerinfer.offload.weight_formats import WeightFormat
    from powerinfer.options.options import EngineOptions
    from powerinfer.placement.plan import PlacementPlan
    from powerinfer.placement.problem import PlacementProblem
    from powerinfer.placement.solvers import BudgetPoint

__all__ = [
    "cpu_json",
    "placement_json",
    "print_budgets",
    "print_cpu",
    "print_formats",
    "print_layers",
    "print_parts",
    "print_placement",
]

# Longest list of layers in characters; instead of a longer one, the distribution is shown.
_LONGEST_LIST = 24


def print_placement(loaded: "LoadedModel") -> None:
    """Print on stderr the placement and the predicted speed; nothing on a CPU alone."""
    placement = loaded.placement
    if placement is None or not placement.plan.has_anything:
        return
    print_paragraph(f"on {placement.device.title} ({placement.chosen.source}):", err=True)
    print_parts(placement.problem, placement.plan, err=True)
    stats = placement.problem.stats
    print_paragraph(
        f"{percent(stats.covered_share(placement.plan))} of the expected activations are on the "
        f"GPU (frequencies: {stats.source})",
        err=True,
    )
    for line in _grown(placement.task.formats):
        print_paragraph(line, err=True)
    print_paragraph(_prediction(placement), err=True)
    reason = "the predictor is written in Python" if placement.asks_python else None
    if loaded.model.observer is not None:
        reason = "every layer is observed"
    if reason is not None:
        print_paragraph(
            f"steps are not recorded, so decoding is slower than predicted: {reason}", err=True
        )


def _grown(formats: tuple["WeightFormat", ...]) -> Iterable[str]:
    """One line if weights take more memory on the GPU than in the file."""
    from powerinfer.ops.gpu.formats import device_format

    grown = [each for each in formats if each.num_decoded]
    if not grown:
        return
    sizes = ", ".join(f"{each.name} {each.growth:.1f} times" for each in grown)
    # A packed format grows only if its blocks lie across neurons.
    lie_across = any(device_format(each.name).is_packed for each in grown)
    kept = "q4_0, q8_0 and K-quants stay as they are"
    if lie_across:
        kept += " once `powerinfer pack` has stored down by neurons"
    yield (
        f"some weights become F16 on the GPU and take more memory there: {sizes} as much as in the "
        f"file ({kept})"
    )


def _prediction(placement: "Placement") -> str:
    handoff = placement.handoff
    by = f"; hand-off: {handoff}" if handoff else ""
    rate = placement.predicted_tokens_per_s
    if rate is None:
        is_interpreted = placement.device.is_interpreted
        why = "kernels are interpreted" if is_interpreted else "the GPU was not measured"
        return f"decode speed is not predicted: {why}{by}"
    return f"predicted decode speed {rate:.1f} tokens/s{by}"


def print_parts(problem: "PlacementProblem", plan: "PlacementPlan", *, err: bool = False) -> None:
    """Print a table of the parts of a model: how many are on the GPU, and their bytes."""
    sizes = problem.sizes.part_bytes(plan)
    attention = _count(layer.has_attention for layer in plan.layers)
    has_predictor = [layer.has_predictor for layer in plan.layers]
    predictors = _count(has_predictor) if any(has_predictor) else "none on the GPU"
    rows = [
        ("attention", attention, sizes["attention_bytes"]),
        ("KV cache", attention, sizes["kv_bytes"]),
        ("predictors", predictors, sizes["predictor_bytes"]),
        ("hot neurons", _hot(plan), sizes["neuron_bytes"]),
        ("output head", "GPU" if sizes["output_bytes"] else "CPU", sizes["output_bytes"]),
        ("driver, workspaces", "GPU" if sizes["overhead_bytes"] else "-", sizes["overhead_bytes"]),
        ("total", f"of {format_bytes(plan.budget_bytes)}", sum(sizes.values())),
    ]
    cells = [(name, where, format_bytes(num_bytes)) for name, where, num_bytes in rows]
    print_table(cells, left=(0, 1), indent=2, err=err)


def _count(has: Iterable[bool]) -> str:
    """`all 32 layers`, `20 of 32 layers`, `CPU`."""
    flags = list(has)
    if not any(flags):
        return "CPU"
    return f"all {len(flags)} layers" if all(flags) else f"{sum(flags)} of {len(flags)} layers"


def _hot(plan: "PlacementPlan") -> str:
    counts = [len(layer.hot) for layer in plan.layers]
    if not any(counts):
        return "none"
    share = percent(sum(counts) / (plan.num_neurons * len(counts)))
    if min(counts) == max(counts):
        return f"{counts[0]} of {plan.num_neurons} per layer ({share})"
    listed = ", ".join(map(str, counts))
    if len(listed) <= _LONGEST_LIST:
        return f"{listed} of {plan.num_neurons} ({share})"
    median = round(statistics.median(counts))
    return f"{min(counts)}-{max(counts)} of {plan.num_neurons}, median {median} ({share})"


def print_layers(problem: "PlacementProblem", plan: "PlacementPlan") -> None:
    """Print a row per layer on stdout; equal layers share a row."""
    rows = [("layer", "attention", "predictor", "hot neurons", "bytes", "covered", "predicted")]
    cells = [
        (
            "GPU" if layer.has_attention else "CPU",
            "GPU" if layer.has_predictor else "-",
            f"{len(layer.hot)} ({percent(len(layer.hot) / plan.num_neurons)})",
            format_bytes(sum(problem.sizes.layers[number].part_bytes(layer).values())),
            percent(problem.stats.covered_share(plan, number)),
            f"{1e6 * layer_s(problem, plan, number):.0f} us",
        )
        for number, layer in enumerate(plan.layers)
    ]
    last = -1
    for row, equals in groupby(cells):
        first, last = last + 1, last + len(list(equals))
        rows.append((str(first) if first == last else f"{first}-{last}", *row))
    print_table(rows)
    click.echo()


def print_formats(formats: tuple["WeightFormat", ...]) -> None:
    """Print on stdout the size of a weight of each format, in the file and on the GPU."""
    rows: list[tuple[str, ...]] = [
        ("format", "in the file", "bytes/weight", "on the GPU", "growth")
    ]
    rows += [
        (
            each.name,
            format_bytes(each.file_bytes),
            f"{each.file_bytes_per_weight:.3g}",
            f"{each.device_bytes_per_weight:.3g}",
            f"{each.growth:.1f}x",
        )
        for each in formats
    ]
    print_table(rows)
    for line in _grown(formats):
        print_paragraph(line)
    click.echo()


def print_budgets(points: Sequence["BudgetPoint"]) -> None:
    """Print predictions for other budgets."""
    rows = [("budget", "hot neurons", "covered", "predicted")]
    for point in points:
        plan = point.plan
        hot = sum(len(layer.hot) for layer in plan.layers)
        share = hot / (plan.num_neurons * len(plan.layers))
        name = format_bytes(point.budget_bytes) if point.budget_bytes else "none"
        rate = f"{1 / point.step_s:.1f} tokens/s" if point.step_s else "-"
        rows.append((name, percent(share), percent(point.covered_share), rate))
    print_table(rows)
    if any(after.step_s > before.step_s for before, after in pairwise(points)):
        print_paragraph(
            "a larger budget may decode a little slower if prompts gain more: a plan counts one "
            "prompt token for each decoded one"
        )
    plans = [point.plan for point in points]
    if any(map(_trades_neurons, plans, plans[1:])):
        print_paragraph(
            "a larger budget may hold fewer hot neurons: attention, predictors or the output head "
            "take their room if that gains more"
        )
    click.echo()


def _trades_neurons(smaller: "PlacementPlan", larger: "PlacementPlan") -> bool:
    """True if a larger budget moves neurons out and other parts in."""
    neurons_before, others_before = _counts(smaller)
    neurons, others = _counts(larger)
    return neurons < neurons_before and others > others_before


def _counts(plan: "PlacementPlan") -> tuple[int, int]:
    """Numbers of hot neurons, and of other parts on the GPU."""
    others = sum(layer.has_attention + layer.has_predictor for layer in plan.layers)
    return sum(len(layer.hot) for layer in plan.layers), others + plan.has_output


def placement_json(problem: "PlacementProblem", plan: "PlacementPlan") -> dict[str, object]:
    """Create the part of `plan --json` on the plan."""
    sizes, predicted_s = problem.sizes.part_bytes(plan), step_s(problem, plan)
    return {
        "budget_bytes": plan.budget_bytes,
        "gpu_bytes": sum(sizes.values()),
        **sizes,
        "gpu_share": problem.stats.covered_share(plan),
        "predicted_tokens_per_s": 1 / predicted_s if predicted_s else None,
        "num_neurons": plan.num_neurons,
        "layers": [
            {
                "layer": number,
                "has_attention": layer.has_attention,
                "has_predictor": layer.has_predictor,
                "hot_neurons": len(layer.hot),
                "gpu_bytes": sum(problem.sizes.layers[number].part_bytes(layer).values()),
                "gpu_share": problem.stats.covered_share(plan, number),
                "predicted_s": layer_s(problem, plan, number),
            }
            for number, layer in enumerate(plan.layers)
        ],
    }


def cpu_json(opened: "ModelFile", options: "EngineOptions") -> dict[str, object]:
    """Create `plan --json` of a model that runs on the CPU alone (`ModelConfig.gpu_obstacle`)."""
    from powerinfer.gguf import model_identity
    from powerinfer.loading.memory_needs import num_slots
    from powerinfer.models.load import default_context
    from powerinfer.models.model import kv_bytes_per_position
    from powerinfer.ops.protocol import KVType

    config = opened.config
    context_length = options.context_length or default_context(config)
    kv_bytes = kv_bytes_per_position(config, KVType(options.kv_type))
    return {
        "model": model_identity(opened.file),
        "note": f"{config.gpu_obstacle} stay on the CPU for now, so no GPU is used",
        "gpu_bytes": 0,
        "weight_bytes": sum(tensor.num_bytes for tensor in opened.file.tensors.values()),
        "context_length": context_length,
        "kv_bytes_per_position": kv_bytes,
        "kv_bytes_in_all": context_length * kv_bytes,
        "state_bytes_per_text": config.state_bytes,
        "state_bytes_in_all": num_slots(config, options, context_length) * config.state_bytes,
    }


def print_cpu(report: dict[str, object]) -> None:
    """Print a table of `cpu_json`: parts of a model, and their bytes in main memory."""
    sizes = {name: value for name, value in report.items() if isinstance(value, int)}
    kv = format_bytes(sizes["kv_bytes_per_position"])
    rows = [
        ("weights", "CPU", sizes["weight_bytes"]),
        ("KV cache", f"CPU, {sizes['context_length']} tokens of {kv}", sizes["kv_bytes_in_all"]),
    ]
    if sizes["state_bytes_per_text"]:
        state = format_bytes(sizes["state_bytes_per_text"])
        num_states = sizes["state_bytes_in_all"] // sizes["state_bytes_per_text"]
        where = f"CPU, {state} per text, room for {num_states}"
        rows.append(("states", where, sizes["state_bytes_in_all"]))
    rows.append(("total", "CPU", sum(num_bytes for _, _, num_bytes in rows)))
    cells = [(name, where, format_bytes(num_bytes)) for name, where, num_bytes in rows]
    print_table(cells, left=(0, 1), indent=2)
    print_paragraph(f"{report['note']}")
