"""Loading a model for a command: progress while it loads, one line about what runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict

import click

from powerinfer.cli.report.ffn_storage import (
    describe_experts,
    experts_report,
    ffn_storage,
    packing_advice,
)
from powerinfer.cli.report.progress import ProgressBar
from powerinfer.cli.report.sparsity import describe_shares, describe_sparsity
from powerinfer.cli.report.tables import change, print_paragraph
from powerinfer.store.memory import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from powerinfer import LLM, Generation, SamplingParams
    from powerinfer.loading.loader import LoadedModel, Progress
    from powerinfer.models.metrics import Metrics
    from powerinfer.offload.progress import PlacementProgress
    from powerinfer.options.llm_options import LLMOptions
    from powerinfer.serve.served_model import ServedModel

__all__ = [
    "announce",
    "describe",
    "device_report",
    "load_for_serving",
    "loading_bars",
    "open_llm",
    "placement_progress",
    "print_speed",
    "reading_bar",
    "say_if_full",
    "summary",
]

# Smaller files load too fast for a progress bar.
PROGRESS_FROM_BYTES = 1 << 30


def reading_bar() -> ProgressBar:
    """Create the progress bar for long prompts, to be passed to `open_llm`."""
    return ProgressBar("reading the prompt", unit="tokens", delay_s=1.0)


def open_llm(
    model: "Path | None", options: "LLMOptions", reading: "Progress | None" = None
) -> "LLM":
    """Load a model, with progress bars on a terminal.

    `reading` is called with (tokens computed, all tokens) while a prompt is computed.
    """
    from powerinfer.engine.llm import LLM

    with loading_bars() as bars:
        return LLM(model, reading=reading, **bars, **options)


def load_for_serving(
    model: "Path | None", options: "LLMOptions", progress: "Progress | None" = None
) -> "ServedModel":
    """Load a model for `serve` or `batch`, with progress bars on a terminal.

    `progress` is called, too, with (bytes prepared, bytes in all).
    """
    from powerinfer.serve.loading import load_served

    with loading_bars() as bars:
        bar = bars["progress"]

        def show(done: int, total: int) -> None:
            bar(done, total)
            if progress is not None:
                progress(done, total)

        bars["progress"] = show
        return load_served(model, options, **bars)


class LoadingBars(TypedDict):
    """Progress callbacks while a model loads; arguments of `LLM`."""

    progress: "Progress"
    downloading: "Progress"
    calibrating: "Progress"
    placing: "PlacementProgress"


@contextmanager
def loading_bars() -> "Iterator[LoadingBars]":
    """Show progress bars on a terminal while a model loads."""
    with (
        ProgressBar("downloading", unit="bytes") as downloading,
        ProgressBar("loading", unit="bytes", shown_from=PROGRESS_FROM_BYTES) as loading,
        ProgressBar("calibrating", unit="layers") as calibrating,
        placement_progress() as placing,
    ):
        yield {
            "progress": loading,
            "downloading": downloading,
            "calibrating": calibrating,
            "placing": placing,
        }


@contextmanager
def placement_progress() -> "Iterator[PlacementProgress]":
    """Show progress bars while a model is placed on a GPU."""
    from powerinfer.offload.progress import PlacementProgress

    with (
        ProgressBar("measuring this machine") as speeds,
        ProgressBar("counting which neurons fire", unit="layers") as statistics,
        ProgressBar("compiling GPU kernels", unit="kernels", delay_s=1.0) as kernels,
    ):
        yield PlacementProgress(speeds=speeds, statistics=statistics, kernels=kernels)


class DeviceReport(TypedDict):
    """Keys on the device in every `--json` report; None if no GPU takes part."""

    device: str
    vram_budget_bytes: int | None
    gpu_bytes: int | None
    gpu_share: float | None
    predicted_tokens_per_s: float | None
    handoff: str | None


def device_report(loaded: "LoadedModel") -> DeviceReport:
    """See `DeviceReport`."""
    found = loaded.placement
    if found is not None and not found.plan.has_anything:
        found = None
    return {
        "device": loaded.device if found else "cpu",
        "vram_budget_bytes": found.problem.budget_bytes if found else None,
        "gpu_bytes": found.gpu_bytes if found else None,
        "gpu_share": found.gpu_share if found else None,
        "predicted_tokens_per_s": found.predicted_tokens_per_s if found else None,
        "handoff": found.handoff if found else None,
    }


def print_speed(metrics: "Metrics") -> None:
    """Print measured and predicted decode speed, if both are known."""
    measured, predicted = metrics.decode_tokens_per_s, metrics.predicted_tokens_per_s
    if measured is None or predicted is None:
        return
    click.echo(
        f"decode measured {measured:.1f} tokens/s, predicted {predicted:.1f} "
        f"({change(measured / predicted - 1, 0)})",
        err=True,
    )


def say_if_full(llm: "LLM", generation: "Generation", params: "SamplingParams") -> None:
    """Tell on stderr that the context was full before all requested tokens were generated."""
    count, limit = len(generation.token_ids), params.max_tokens
    if generation.finish_reason != "length" or count == limit:
        return
    model = llm.loaded.model
    other = "" if model.config.state_mixers else ", or drop old text with --context-shift"
    click.echo(
        f"(the context of {model.context_length} tokens is full after {count} generated tokens: "
        f"set a larger one with -c{other})",
        err=True,
    )


def summary(metrics: "Metrics") -> str:
    """Figures of a generation as one line."""
    parts = [f"load {metrics.load_s:.2f} s"]
    if (rate := metrics.prefill_tokens_per_s) is not None:
        parts.append(f"prefill {metrics.prefill_tokens} tokens, {rate:.1f} tokens/s")
    if (rate := metrics.decode_tokens_per_s) is not None:
        parts.append(f"decode {metrics.decode_tokens} tokens, {rate:.1f} tokens/s")
    if (count := metrics.bytes_per_token) is not None:
        parts.append(f"{format_bytes(count)} per token, {metrics.gb_per_s or 0:.2f} GB/s")
    if metrics.active_share is not None:
        parts.append(describe_shares(metrics))
    if (share := metrics.draft_accepted_share) is not None:
        drafted = f"{share:.0%} of {metrics.num_drafted} drafted tokens accepted"
        parts.append(f"{drafted}, {metrics.tokens_per_step or 0:.2f} tokens per step")
    return "; ".join(parts)


def announce(loaded: "LoadedModel") -> None:
    """Print on stderr what runs, and the placement if a GPU takes part."""
    print_paragraph(describe(loaded), err=True)
    advice = _packing_advice(loaded)
    if advice is not None:
        print_paragraph(f"note: down is {advice}", err=True)
    if loaded.placement is not None:
        from powerinfer.cli.report.placement import print_placement

        print_placement(loaded)


def describe(loaded: "LoadedModel") -> str:
    """One line on what runs: model, activation, sparsity, threads, kernels."""
    config, blocks = loaded.model.config, "no FFN"
    threads = f"{loaded.threads} thread{'s' if loaded.threads != 1 else ''}"
    if config.has_ffns:
        sparsity = describe_sparsity(loaded)
        blocks = f"{config.activation} FFN{_experts(loaded)}, sparsity {sparsity}"
    return (
        f"{loaded.path.name}: {config.architecture}, {config.num_layers} layers, {blocks}; "
        f"{threads}, {loaded.kernels} kernels{_gpu(loaded)}, context {loaded.model.context_length}"
    )


def _experts(loaded: "LoadedModel") -> str:
    """Phrase on the experts of a token; empty for a model without."""
    report = experts_report(loaded.file, loaded.model.config)
    return "" if report is None else f", {describe_experts(report)}"


def _packing_advice(loaded: "LoadedModel") -> str | None:
    """Advice to pack the model, if it skips neurons."""
    from powerinfer.models.sparsity import OFF

    if loaded.model.sparsity == OFF:
        return None
    storage = ffn_storage(loaded.file)
    return packing_advice(storage.plain_down_bytes, storage.plain_down_formats, storage.bytes)


def _gpu(loaded: "LoadedModel") -> str:
    """The GPU that takes part, if one does."""
    placement = loaded.placement
    if placement is None or not placement.plan.has_anything:
        return ""
    return f" and {placement.device.title}"
