"""Plan which neurons go to the GPU, and predict the speed; generates no text.

Works without a GPU if the budget is an amount: it measures the CPU and assumes a GPU.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import PathType, check_folder, check_plots, model_file
from powerinfer.cli.flags.flags import flag, flags, in_flags, llm_options
from powerinfer.cli.flags.options import json_option, model_option, option, print_json
from powerinfer.errors import PlacementError
from powerinfer.options.options import AUTO, CPU, EngineOptions, check_dials, engine_options

if TYPE_CHECKING:
    from powerinfer.offload.choose_plan import ChosenPlan
    from powerinfer.offload.problem import PlacementTask
    from powerinfer.options.llm_options import LLMOptions
    from powerinfer.placement.solvers import BudgetPoint

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer plan -m model.gguf --vram-budget 8
  powerinfer plan -m model.gguf --vram-budget 8 --solver paper --plot plots
  powerinfer plan -m model.gguf --vram-budget 50% -c 8192    half of the free memory
  powerinfer plan -m model.gguf --vram-budget 8 -o eight.plan.json
  powerinfer plan -m model.gguf --vram-budget 8 --gpu-index model.gguf.generated.gpuidx
  powerinfer run -m model.gguf --gpu-index eight.plan.json -p 'Hello'

\b
A plan says which layers have attention and predictor on the GPU, and which
neurons of each FFN. The CPU computes the others at the same time.
A plan needs:
  firing frequencies  from `powerinfer calibrate`, PowerInfer's activation
                      folder next to the model, or a brief profile made now
  device speeds       measured once; without a GPU here, or with --device cpu,
                      an NVIDIA RTX 4090 is assumed
  a budget            for everything: the driver, workspaces, KV cache,
                      attention, neurons

The first table has one row for several equal layers. `covered` is the share of
the layer's expected activations whose neurons are on the GPU, `predicted` the
time of the layer for one token. One table gives the size of each weight format
in the file and on the GPU, where formats that are not packed there become F16. The
last table shows the predicted speed for other budgets.

The plan is stored next to the model, where `powerinfer run` with the same budget
finds it, or in the file that -o names. PowerInfer's own file is written next to
it, as MODEL.gguf.generated.gpuidx, but never replaces one of another program.
--gpu-index solves and writes nothing: it explains an existing plan or index.

\b
Layers with a state (lfm2, qwen35) and those of gemma4 stay on the CPU for now: such a model has
no plan, and its table shows the main memory that weights, KV cache and states take.
"""


@click.command(epilog=_EPILOG)
@model_option
@flags("vram_budget", "solver")
@flag("gpu_index", help="Explain this plan or PowerInfer index instead of making one.")
@option(
    "-o --output FILE", "Write the plan to this file. [default: MODEL.gguf.plan.json]", PathType()
)
@click.option(
    "--write-gpu-index/--no-write-gpu-index",
    default=None,
    help="Also write PowerInfer's index next to the plan, as NAME.generated.gpuidx. [default: "
    "yes, unless another program wrote the file that is there]",
)
@option(
    "--plot FOLDER",
    "Draw neurons per layer, covered activations and predicted speed by budget, into this folder.",
    PathType(file_okay=False),
    name="plots",
)
@flags("device", "context_length", "kv_type", "sparsity", "max_ffn_error", "recall")
@flags("measure_recall", "activation", "threads", "kernels")
@json_option
def plan(
    model: Path | None,
    gpu_index: Path | None,
    output: Path | None,
    write_gpu_index: bool | None,
    plots: Path | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Plan which neurons go to the GPU, and predict the speed; generates no text."""
    options = llm_options(flags)
    check_dials(max_ffn_error=options.get("max_ffn_error"), recall=options.get("recall"))
    if gpu_index is not None and (output is not None or write_gpu_index):
        raise click.UsageError(
            "--gpu-index explains an existing plan and writes nothing: leave -o and "
            "--write-gpu-index out"
        )
    if options.get("measure_recall"):
        raise click.UsageError("--measure-recall needs a text, and plan runs none: leave it out")
    _check_targets(model, output, plots, writes_index=bool(write_gpu_index))
    model = model_file(model)
    if not (gpu_index or output or write_gpu_index or plots) and _stays_on_cpu(
        model, options, as_json=as_json
    ):
        return
    solver = options.get("solver")
    task, chosen = _solve(model, gpu_index, options)
    from powerinfer.offload.choose_plan import budget_ladder

    points = budget_ladder(task, solver)
    written = []
    if gpu_index is None:
        written = _write(task, chosen, output, writes_index=write_gpu_index)
    drawn = []
    if plots is not None:
        from powerinfer.bench.placement_plots import draw_placement_plots

        drawn = draw_placement_plots(chosen.plan, points, plots, _facts(task))
    if as_json:
        print_json(_as_json(task, chosen, points, written, drawn))
        return
    _print(task, chosen, points)
    for path in written:
        click.echo(f"stored in {path}")
    for path in drawn:
        click.echo(f"drawn: {path}")


def _facts(task: "PlacementTask") -> tuple[str, ...]:
    """Lines that plots show: model, devices and frequencies."""
    speeds, stats = task.speeds, task.problem.stats
    measured = f", {stats.num_tokens} tokens" if stats.num_tokens else ""
    assumed = " (assumed)" if speeds.is_gpu_assumed and "assumed" not in speeds.gpu else ""
    return (
        task.file.path.name,
        f"GPU: {speeds.gpu}{assumed}",
        f"CPU: {speeds.cpu}",
        f"frequencies: {stats.source}{measured}",
    )


def _check_targets(
    model: Path | None, output: Path | None, plots: Path | None, *, writes_index: bool
) -> None:
    """Check before solving that everything can be written."""
    from powerinfer.offload.choose_plan import index_beside
    from powerinfer.placement import gpu_index
    from powerinfer.placement.plan import PLAN

    check_plots(plots)
    if output is not None:
        check_folder(output.parent)
        PLAN.check_target(output)
    if writes_index:
        gpu_index.check_target(index_beside(output or PLAN.beside(model_file(model))))


def _stays_on_cpu(model: Path, options: "LLMOptions", *, as_json: bool) -> bool:
    """Print the sizes of a model with state, which has no plan; return False for others."""
    from powerinfer.cli.report.placement import cpu_json, print_cpu
    from powerinfer.models.model_file import ModelFile

    opened = ModelFile.open(model, options.get("activation"))
    if opened.config.gpu_obstacle is None:
        return False
    given = engine_options(
        context_length=options.get("context_length"), kv_type=options.get("kv_type", "f16")
    )
    report = cpu_json(opened, given)
    if as_json:
        print_json(report)
    else:
        print_cpu(report)
    return True


def _solve(
    model: Path | None, gpu_index: Path | None, options: "LLMOptions"
) -> tuple["PlacementTask", "ChosenPlan"]:
    """Load the model on the CPU, and make or read its plan."""
    from powerinfer.cli.model import open_llm, placement_progress
    from powerinfer.offload.choose_plan import choose_plan
    from powerinfer.offload.devices import find_device
    from powerinfer.offload.problem import budget_bytes, placement_task
    from powerinfer.store.threads import default_threads

    device = find_device(EngineOptions(device=options.pop("device", AUTO)))
    wanted = engine_options(
        vram_budget=options.pop("vram_budget", None),
        solver=options.pop("solver", None),
        kv_type=options.get("kv_type", "f16"),
        gpu_index=gpu_index,
        reset_gpu_index=gpu_index is None,
    )
    if device is None:
        # Report a wrong budget before the model is loaded.
        budget_bytes(wanted, None)
    # As many as `run` uses, which checks the plan by speeds measured with them.
    options["threads"] = options.get("threads") or default_threads(beside_gpu=True)
    options["device"] = CPU
    with open_llm(model, options) as llm, placement_progress() as progress:
        loaded = llm.loaded
        task = placement_task(
            loaded.sparsity, loaded.file, loaded.tokenizer, wanted, device, progress
        )
        return task, choose_plan(task, wanted)


def _write(
    task: "PlacementTask", chosen: "ChosenPlan", output: Path | None, *, writes_index: bool | None
) -> list[Path]:
    """Store the plan and PowerInfer's index; return the paths.

    A file that was asked for and cannot be written is an error. Otherwise (no output was named,
    `writes_index` is None) it is left out with a warning.
    """
    from powerinfer.offload.choose_plan import index_beside
    from powerinfer.offload.plan_files import save_plan, write_plan
    from powerinfer.placement.gpu_index import write_gpu_index

    if output is not None:
        written = [write_plan(output, chosen.plan)]
    else:
        try:
            written = [save_plan(task.file, chosen.plan)]
        except PlacementError as error:
            if writes_index:
                raise
            click.echo(f"warning: the plan was not stored: {in_flags(error)}", err=True)
            return []
    if writes_index is False:
        return written
    try:
        index = index_beside(written[0])
        neuron_bytes = task.problem.sizes.part_bytes(chosen.plan)["neuron_bytes"]
        write_gpu_index(index, chosen.plan, neuron_bytes)
        written.append(index)
    except PlacementError as error:
        if writes_index:
            raise
        click.echo(f"note: PowerInfer's index was not written: {in_flags(error)}", err=True)
    return written


def _print(task: "PlacementTask", chosen: "ChosenPlan", points: list["BudgetPoint"]) -> None:
    from powerinfer.cli.report import placement
    from powerinfer.cli.report.tables import print_paragraph
    from powerinfer.placement.step_time import step_s
    from powerinfer.store.memory import format_bytes

    problem, plan = task.problem, chosen.plan
    speeds, stats = task.speeds, problem.stats
    budget = format_bytes(plan.budget_bytes)
    print_paragraph(f"{task.file.path.name}, budget {budget}: {chosen.source}")
    print_paragraph(f"GPU: {speeds.gpu}")
    print_paragraph(f"CPU: {speeds.cpu}")
    print_paragraph(f"frequencies: {stats.source}, {stats.num_tokens} tokens")
    click.echo()
    placement.print_layers(problem, plan)
    placement.print_parts(problem, plan)
    click.echo()
    placement.print_formats(task.formats)
    rate, covered = 1 / step_s(problem, plan), stats.covered_share(plan)
    print_paragraph(
        f"predicted decode speed {rate:.1f} tokens/s; {100 * covered:.1f} % of the "
        "expected activations are on the GPU"
    )
    if not plan.has_anything:
        click.echo("nothing is on the GPU: the budget is too small, or the CPU alone is faster")
    click.echo()
    placement.print_budgets(points)


def _as_json(
    task: "PlacementTask",
    chosen: "ChosenPlan",
    points: list["BudgetPoint"],
    written: list[Path],
    drawn: list[Path],
) -> dict[str, object]:
    from powerinfer.cli.report.placement import placement_json

    speeds, stats = task.speeds, task.problem.stats
    return {
        "model": task.problem.model_identity,
        "solver": chosen.plan.solver,
        "source": chosen.source,
        "gpu": speeds.gpu,
        "is_gpu_assumed": speeds.is_gpu_assumed,
        "cpu": speeds.cpu,
        "frequencies": stats.source,
        "tokens": stats.num_tokens,
        **placement_json(task.problem, chosen.plan),
        "formats": [
            {
                "name": each.name,
                "file_bytes": each.file_bytes,
                "file_bytes_per_weight": each.file_bytes_per_weight,
                "gpu_bytes_per_weight": each.device_bytes_per_weight,
            }
            for each in task.formats
        ],
        "budgets": [
            {
                "budget_bytes": point.budget_bytes,
                "gpu_share": point.covered_share,
                "predicted_tokens_per_s": 1 / point.step_s if point.step_s else None,
            }
            for point in points
        ],
        "paths": [str(path) for path in written],
        "plots": [str(path) for path in drawn],
    }


COMMAND = plan
