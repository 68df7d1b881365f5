"""Loading a model for a command: options from flags, a progress line, one line on what runs."""

import sys
from typing import TYPE_CHECKING, Any, TypedDict

import click

from powerinfer.cli.sparsity import describe_sparsity
from powerinfer.cli.sparsity_options import check_dials

if TYPE_CHECKING:
    from pathlib import Path

    from powerinfer import LLM
    from powerinfer.engine.loader import LoadedModel
    from powerinfer.engine.metrics import Metrics
    from powerinfer.engine.offload.progress import PlacementProgress

__all__ = [
    "EngineFlags",
    "announce",
    "describe",
    "device_report",
    "engine_flags",
    "open_llm",
    "placement_progress",
    "print_speed",
]

# Below this a load takes no time worth a bar.
PROGRESS_FROM_BYTES = 1 << 30


class EngineFlags(TypedDict):
    """Values of the flags that `cli.options.engine_options` adds."""

    context_length: int | None
    threads: int | None
    kv_type: str
    activation: str | None
    sparsity: str | None
    max_ffn_error: float | None
    recall: float | None
    measure_recall: bool
    kernels: str | None
    mmap: bool
    device: str
    vram_budget: str | None
    gpu_index: "Path | None"
    reset_gpu_index: bool
    disable_gpu_index: bool
    online: bool | None
    solver: str | None


ENGINE_FLAGS = tuple(EngineFlags.__annotations__)


def open_llm(model: "Path | None", flags: dict[str, Any], **more: Any) -> "LLM":
    """Load a model with the engine flags among `flags` and further options.

    Args:
        model: value of `-m`.
        flags: parameters of the command; those that are not engine flags are left alone.
        **more: further options of `LLM`.

    Raises:
        click.UsageError: flags contradict each other.
    """
    from powerinfer import LLM

    check_dials(flags)
    return LLM(
        model,
        progress=_progress("loading", PROGRESS_FROM_BYTES),
        calibrating=_progress("calibrating"),
        placing=placement_progress(),
        **engine_flags(flags),
        **more,
    )


def placement_progress() -> "PlacementProgress":
    """Lines for what is measured before a model is placed on a GPU."""
    from powerinfer.engine.offload.progress import PlacementProgress

    return PlacementProgress(
        speeds=_progress("measuring this machine"),
        statistics=_progress("counting which neurons run"),
    )


def device_report(loaded: "LoadedModel") -> dict[str, Any]:
    """The keys of every `--json` report on the device; None where no GPU takes part."""
    placement = loaded.placement
    if placement is None or not placement.plan.has_anything:
        names = ("vram_budget_bytes", "gpu_bytes", "gpu_share", "predicted_tokens_per_s", "handoff")
        return {"device": "cpu", **dict.fromkeys(names)}
    return {
        "device": loaded.device,
        "vram_budget_bytes": placement.problem.budget_bytes,
        "gpu_bytes": placement.gpu_bytes,
        "gpu_share": placement.gpu_share,
        "predicted_tokens_per_s": placement.predicted_tokens_per_s,
        "handoff": placement.handoff,
    }


def print_speed(metrics: "Metrics") -> None:
    """Print the measured decode speed beside the predicted one; nothing where one is missing."""
    measured, predicted = metrics.decode_tokens_per_s, metrics.predicted_tokens_per_s
    if measured is None or predicted is None:
        return
    click.echo(
        f"decode measured {measured:.1f} tokens/s, predicted {predicted:.1f} "
        f"({100 * (measured / predicted - 1):+.0f} %)",
        err=True,
    )


def engine_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """The engine flags among `flags`, as options of `LLM`."""
    options = {name: flags[name] for name in ENGINE_FLAGS if name in flags}
    # An empty POWERINFER_KERNELS means what an unset one means.
    options["kernels"] = options.get("kernels") or None
    return options


def announce(llm: "LLM") -> None:
    """Say on stderr what runs, and where everything lies if a GPU takes part."""
    click.echo(describe(llm), err=True)
    if llm.loaded.placement is not None:
        from powerinfer.cli.placement_report import print_placement

        print_placement(llm.loaded)


def describe(llm: "LLM") -> str:
    """One line on what runs: model, activation, sparsity, threads, kernels."""
    loaded = llm.loaded
    config = loaded.model.config
    threads = f"{loaded.threads} thread{'s' if loaded.threads != 1 else ''}"
    return (
        f"{loaded.path.name}: {config.architecture}, {config.num_layers} layers, "
        f"{config.activation} FFN, sparsity {describe_sparsity(loaded)}; {threads}, "
        f"{loaded.kernels} kernels{_gpu(loaded)}, context {loaded.model.context_length}"
    )


def _gpu(loaded: "LoadedModel") -> str:
    """The GPU that takes part, if one does."""
    placement = loaded.placement
    if placement is None or not placement.plan.has_anything:
        return ""
    return f" and {placement.device.title}"


def _progress(what: str, shown_from: int = 0) -> Any:
    """A line on stderr that is rewritten while something long goes on; None off a terminal.

    Args:
        what: goes on.
        shown_from: smallest total that is worth a line.
    """
    if not sys.stderr.isatty():
        return None
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // max(1, total)
        if total < shown_from or percent == shown:
            return
        shown = percent
        end = "\r\x1b[K" if done >= total else ""
        click.echo(f"\r{what} {percent:3d} %{end}", err=True, nl=False)

    return show
