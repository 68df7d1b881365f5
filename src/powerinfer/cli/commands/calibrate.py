"""Measure which neurons fire, and choose a predictor for each layer.

The result is stored next to the model, where other commands find it.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import check_folder, check_plots, model_file, read_text, text_name
from powerinfer.cli.flags.calibration import calibration_options
from powerinfer.cli.flags.flags import in_flags, llm_options
from powerinfer.cli.flags.options import print_json
from powerinfer.cli.report.progress import ProgressBar
from powerinfer.errors import CalibrationError
from powerinfer.options.options import check_dials

if TYPE_CHECKING:
    from powerinfer import LLM
    from powerinfer.calibration.text import CalibrationText
    from powerinfer.predictors.calibration import Calibration, Dial

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer calibrate -m model.gguf -f my-texts.txt
  powerinfer calibrate -m model.gguf --max-ffn-error 0.02 --plot plots
  powerinfer calibrate -m model.gguf --export measured.npz
  powerinfer calibrate -m model.gguf --kinds lowbit:2,lowbit:3 --recall 0.99
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


@click.command(epilog=_EPILOG)
@calibration_options
def calibrate(  # noqa: PLR0913  click passes every flag as an argument
    model: Path | None,
    file: Path | None,
    num_tokens: int | None,
    max_ffn_error: float | None,
    recall: float | None,
    kinds: tuple[str, ...] | None,
    is_inside: bool,  # noqa: FBT001
    output: Path | None,
    export: Path | None,
    plots: Path | None,
    as_json: bool,  # noqa: FBT001
    **flags: object,
) -> None:
    """Measure which neurons fire, and choose a predictor for each layer."""
    check_dials(max_ffn_error, recall)
    options = llm_options(flags)
    content = None if file is None else read_text(file)
    _check_more(export, plots, output)
    _check_target(model, options.get("activation"), output, is_inside=is_inside)
    from powerinfer.cli.model import open_llm
    from powerinfer.predictors.calibration import DEFAULT_DIAL, Dial

    has_dial = max_ffn_error is not None or recall is not None
    dial = Dial(max_ffn_error, recall) if has_dial else DEFAULT_DIAL
    options["sparsity"], options["device"] = "exact", "cpu"
    with open_llm(model, options) as llm:
        text = None if content is None or file is None else (text_name(file), content)
        found = _measure(llm, _windows(llm, text, num_tokens), dial, kinds)
        stored = _store(llm, found, output, is_inside=is_inside)
        name = llm.loaded.path.name
    _report(found, name, stored, export, plots, as_json=as_json)


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
    stored: Path,
    export: Path | None,
    plots: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write tables and plots, then print the report, which appears even if writing fails."""
    from powerinfer.cli.report.calibration import Written, as_report, print_report

    written, problem = Written(stored), None
    try:
        if export is not None:
            from powerinfer.calibration.export import export_calibration

            written = replace(written, exports=export_calibration(found, export))
        if plots is not None:
            from powerinfer.bench.calibration_plots import draw_plots

            written = replace(written, plots=draw_plots(found, plots, model=name))
    except CalibrationError as error:
        problem = f"{in_flags(error)}; the calibration itself is stored in {stored}"
    try:
        if as_json:
            print_json(as_report(found, written))
        else:
            print_report(found, written)
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
    model: Path | None, activation: str | None, output: Path | None, *, is_inside: bool
) -> None:
    """Check before measuring that the result can be stored."""
    from powerinfer.calibration.targets import check_activation, check_target
    from powerinfer.gguf import open_gguf

    file = open_gguf(model_file(model))
    check_activation(file, activation)
    check_target(file, output, is_inside=is_inside)
    if is_inside and output is None:
        _check_is_own(file.path)
    if output is not None or is_inside:
        check_folder((output or file.path).parent)


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

    with ProgressBar("calibrating", unit="layers") as progress:
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
