"""Loading a model for a command: options from flags, a progress line, one line on what runs."""

import sys
from typing import TYPE_CHECKING, Any, TypedDict

import click

from powerinfer.cli.sparsity import describe_sparsity
from powerinfer.cli.sparsity_options import check_dials

if TYPE_CHECKING:
    from pathlib import Path

    from powerinfer import LLM

__all__ = ["EngineFlags", "describe", "engine_flags", "open_llm"]

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
        **engine_flags(flags),
        **more,
    )


def engine_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """The engine flags among `flags`, as options of `LLM`."""
    options = {name: flags[name] for name in ENGINE_FLAGS if name in flags}
    # An empty POWERINFER_KERNELS means what an unset one means.
    options["kernels"] = options.get("kernels") or None
    return options


def describe(llm: "LLM") -> str:
    """One line on what runs: model, activation, sparsity, threads, kernels."""
    loaded = llm.loaded
    config = loaded.model.config
    threads = f"{loaded.threads} thread{'s' if loaded.threads != 1 else ''}"
    return (
        f"{loaded.path.name}: {config.architecture}, {config.num_layers} layers, "
        f"{config.activation} FFN, sparsity {describe_sparsity(loaded)}; {threads}, "
        f"{loaded.kernels} kernels, context {loaded.model.context_length}"
    )


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
