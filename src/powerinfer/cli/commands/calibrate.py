"""Measure which neurons fire, and choose a predictor for each layer.

The result is stored next to the model, where other commands find it.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import (
    PathType,
    check_folder,
    check_plots,
    model_file,
    read_text,
    text_name,
)
from powerinfer.cli.flags.flags import flag, flags, in_flags, llm_options
from powerinfer.cli.flags.options import json_option, model_option, option, print_json
from powerinfer.cli.report.progress import BEGINS_AGAIN, ProgressBar, when_stopped
from powerinfer.errors import CalibrationError
from powerinfer.options.options import check_dials

if TYPE_CHECKING:
    from powerinfer import LLM
    from powerinfer.calibration.text import CalibrationText
    from powerinfer.predictors.calibration import Calibration, Dial
    from powerinfer.values import Activation

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer calibrate -m model.gguf -f my-texts.txt
  powerinfer calibrate -m model.gguf --max-ffn-error 0.02 --plot plots
  powerinfer calibrate -m model.gguf --export measured.npz
  powerinfer calibrate -m model.gguf --kinds lowbit:2,lowbit:3 --recall 0.99
  powerinfer calibrate -m silu-model.gguf --zeros 0.4        thresholds on silu
  powerinfer run -m model.gguf -p 'Hello'                    uses it
  powerinfer run -m model.gguf -p 'Hello' --sparsity exact   does not

\b
The model runs without loss over windows of the text. Half of the windows give
statistics of each layer's inputs, the other half measures each predictor:
  density    share of the neurons that it lets pass
  recall     share of the firing neurons (not zero) that it lets pass
  precision  share of the neurons it lets pass that fire
  error      relative error of the FFN output
Each layer gets the predictor that reads the fewest bytes within the allowed
error, or `exact` if none is faster.

Separators between documents, such as <|endoftext|>, are read as plain text:
remove them first. Use text like what the model will read. Other commands can
choose again with --max-ffn-error or --recall, without measuring again.
"""


def _kinds(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[str, ...] | None:
    """Parse `lowbit:2,sign` into the names that curves use."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise click.BadParameter("name at least one kind, such as lowbit:2")
    return tuple(dict.fromkeys(_kind(part) for part in parts))


def _kind(text: str) -> str:
    from powerinfer.predictors import get_kind, kind_names, parse_kind
    from powerinfer.predictors.kind import THRESHOLD

    if text.lower() == THRESHOLD:
        return THRESHOLD
    if text.lower() not in ("off", "auto"):
        parts = parse_kind(text)
        if parts[0].kind.scorer is not None:
            return "+".join(str(part) for part in parts)
    scored = [name for name in kind_names() if get_kind(name.partition(":")[0]).scorer]
    raise click.BadParameter(
        f"{text!r} has no threshold to calibrate; use {', '.join(scored)} or a cascade such as "
        "sign+lowbit:2"
    )


@click.command(epilog=_EPILOG)
@model_option
@option(
    "-f --file TEXT",
    "Text to measure on, UTF-8; - is stdin. [default: a short bundled text]",
    PathType(),
)
@option(
    "--tokens N",
    "Use at most N tokens of the text; memory grows with them. [default: 4096; 1024 for wide "
    "models]",
    click.IntRange(32, 1 << 16),
    name="num_tokens",
)
@flag(
    "max_ffn_error",
    help="Largest relative error that predictors may cause in each layer's FFN output. "
    "[default: 0.01]",
)
@flag(
    "recall",
    help="Share of the firing neurons that predictors must find; instead of --max-ffn-error.",
)
@option(
    "--zeros S",
    "Of silu or gelu: find thresholds for --activation-threshold auto that make this share of the "
    "neurons zero in each layer, with loss. For an error instead: --kinds threshold "
    "--max-ffn-error X.",
    click.FloatRange(0, 1, min_open=True, max_open=True),
)
@option(
    "--kinds K,K",
    "Predictor kinds to measure, such as lowbit:3 (lowbit alone is lowbit:2), sign or "
    "sign+lowbit:2. [default: each built-in kind that the model can run, and sign+lowbit:2]",
    callback=_kinds,
)
@option(
    "--write",
    "Store the result inside the model file. A calibration next to the file is deleted, "
    "because it would take precedence.",
    name="is_inside",
)
@option(
    "-o --output FILE",
    "File to write: the calibration or, with --write, a copy of the model. [default: "
    "MODEL.gguf.calibration.json; with --write the model itself]",
    PathType(),
)
@option(
    "--export FILE",
    "Also write all measurements as tables: FILE.npz for numpy, or FILE.csv and three files "
    "next to it. Columns: docs/calibration-file.md.",
    PathType(),
)
@option(
    "--plot FOLDER",
    "Also draw the measurements, into this folder; needs the extra plot: scripts/setup plot.",
    PathType(file_okay=False),
    name="plots",
)
@flags("activation", "threads", "kernels")
@json_option
def calibrate(
    model: Path | None,
    file: Path | None,
    num_tokens: int | None,
    max_ffn_error: float | None,
    recall: float | None,
    zeros: float | None,
    kinds: tuple[str, ...] | None,
    is_inside: bool,
    output: Path | None,
    export: Path | None,
    plots: Path | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Measure which neurons fire, and choose a predictor for each layer."""
    check_dials(max_ffn_error=max_ffn_error, recall=recall, zeros=zeros)
    options = llm_options(flags)
    content = None if file is None else read_text(file)
    _check_more(export, plots, output)
    from powerinfer.predictors.kind import THRESHOLD

    if zeros is not None and kinds is None:
        kinds = (THRESHOLD,)
    may_cut = kinds == (THRESHOLD,)
    activation = _check_target(
        model, options.get("activation"), output, is_inside=is_inside, may_cut=may_cut
    )
    from powerinfer.cli.model import open_llm
    from powerinfer.predictors.calibration import Dial, default_dial

    dial = Dial(max_ffn_error, recall, zeros)
    dial = default_dial(activation) if dial == Dial() else dial
    options["sparsity"], options["device"] = "exact" if activation.is_sparse else "off", "cpu"
    with open_llm(model, options) as llm:
        text = None if content is None or file is None else (text_name(file), content)
        found = _measure(llm, _windows(llm, text, num_tokens), dial, kinds)
        stored = _store(llm, found, output, is_inside=is_inside)
        name, numbers = llm.loaded.path.name, llm.loaded.model.config.counted_layers
    _report(found, name, numbers, stored, export, plots, as_json=as_json)


def _check_more(export: Path | None, plots: Path | None, output: Path | None) -> None:
    """Check, before measuring, that tables and plots can be written."""
    if export is not None:
        from powerinfer.calibration.export import check_export

        check_export(export)
        check_folder(export.parent)
        if output is not None and output.absolute() == export.absolute():
            raise click.UsageError("-o and --export name the same file; give each its own")
    check_plots(plots)


def _report(
    found: "Calibration",
    name: str,
    numbers: list[int],
    stored: Path,
    export: Path | None,
    plots: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write tables and plots, then print the report, which appears even if writing fails."""
    from powerinfer.cli.report.calibration import as_report, print_report

    exports: list[Path] = []
    drawn: list[Path] = []
    problem = None
    try:
        if export is not None:
            from powerinfer.calibration.export import export_calibration

            exports = export_calibration(found, export)
        if plots is not None:
            from powerinfer.bench.calibration_plots import draw_plots

            drawn = draw_plots(found, plots, model=name)
    except CalibrationError as error:
        problem = f"{in_flags(error)}; the calibration itself is stored in {stored}"
    try:
        if as_json:
            print_json(as_report(found, numbers, stored, exports, drawn))
        else:
            print_report(found, numbers, stored, exports, drawn)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise CalibrationError(
            f"the report cannot be printed: {error.strerror or error}; the calibration itself is "
            f"stored in {stored}"
        ) from None
    if problem is not None:
        raise CalibrationError(problem)


def _check_target(
    model: Path | None,
    activation: str | None,
    output: Path | None,
    *,
    is_inside: bool,
    may_cut: bool,
) -> "Activation":
    """Check before measuring that the result can be stored; return the model's activation."""
    from powerinfer.calibration.targets import check_activation, check_target
    from powerinfer.gguf import open_gguf

    file = open_gguf(model_file(model))
    found = check_activation(file, activation, may_cut=may_cut)
    check_target(file, output, is_inside=is_inside)
    if is_inside and output is None:
        _check_is_own(file.path)
    if output is not None or is_inside:
        check_folder((output or file.path).parent)
    return found


def _check_is_own(path: Path) -> None:
    from powerinfer.errors import HubError
    from powerinfer.hub.caches import is_fetched

    if is_fetched(path):
        raise HubError(
            f"{path}: was fetched from the Hub, and is not changed",
            remedy="write a copy with {output}",
        )


def _windows(
    llm: "LLM", text: tuple[str, bytes] | None, num_tokens: int | None
) -> "CalibrationText":
    """Cut a text (name and content) into windows; None takes the bundled text."""
    from powerinfer.calibration.text import (
        BUNDLED_TEXT,
        bundled_text,
        cut_windows,
        default_tokens,
    )

    tokenizer, config = llm.loaded.tokenizer, llm.loaded.model.config
    name, content = text or (BUNDLED_TEXT, bundled_text())
    return cut_windows(
        name,
        tokenizer.encode(content, add_bos=False),
        num_tokens=num_tokens or default_tokens(config.hidden_size, config.num_neurons),
        context_length=llm.loaded.model.context_length,
        bos_id=tokenizer.bos_id if tokenizer.add_bos else None,
    )


def _measure(
    llm: "LLM", text: "CalibrationText", dial: "Dial", kinds: tuple[str, ...] | None
) -> "Calibration":
    """Measure all layers with a progress bar."""
    from powerinfer.calibration.calibrate import calibrate as calibrate_model
    from powerinfer.gguf import model_identity

    with when_stopped(BEGINS_AGAIN), ProgressBar("calibrating", unit="layers") as progress:
        return calibrate_model(
            llm.loaded.model,
            text,
            identity=model_identity(llm.loaded.file),
            dial=dial,
            kinds=kinds,
            progress=progress,
        )


def _store(llm: "LLM", found: "Calibration", output: Path | None, *, is_inside: bool) -> Path:
    """Store the result where the flags say; return the path."""
    from powerinfer.calibration.files import save_calibration, write_inside
    from powerinfer.predictors.calibration_json import CALIBRATION

    file = llm.loaded.file
    if is_inside:
        return write_inside(file, found, output)
    return save_calibration(file, found) if output is None else CALIBRATION.write(output, found)


COMMAND = calibrate
