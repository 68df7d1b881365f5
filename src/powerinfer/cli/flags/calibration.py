"""The options of `powerinfer calibrate`."""

import click

from powerinfer.cli.files import PathType
from powerinfer.cli.flags.flags import Command, add_flags, flag, flags
from powerinfer.cli.flags.options import json_option, model_option, option

__all__ = ["calibration_options"]


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

    if text.lower() not in ("off", "auto"):
        parts = parse_kind(text)
        if parts[0].kind.scorer is not None:
            return "+".join(str(part) for part in parts)
    scored = [name for name in kind_names() if get_kind(name.partition(":")[0]).scorer]
    raise click.BadParameter(
        f"{text!r} has no threshold to calibrate; use {', '.join(scored)} or a cascade such as "
        "sign+lowbit:2"
    )


_MEASURING = (
    option(
        "-f --file TEXT",
        "Text to measure on, UTF-8; - is stdin. [default: a short bundled text]",
        PathType(),
    ),
    option(
        "--tokens N",
        "Use at most N tokens of the text; memory grows with them. [default: 4096; 1024 for wide "
        "models]",
        click.IntRange(32, 1 << 16),
        name="num_tokens",
    ),
    flag(
        "max_ffn_error",
        help="Largest relative error that predictors may cause in each layer's FFN output. "
        "[default: 0.01]",
    ),
    flag(
        "recall",
        help="Share of the firing neurons that predictors must find; instead of --max-ffn-error.",
    ),
    option(
        "--kinds K,K",
        "Predictor kinds to measure, such as lowbit:3 (lowbit alone is lowbit:2), sign or "
        "sign+lowbit:2. [default: each built-in kind that the model can run, and sign+lowbit:2]",
        callback=_kinds,
    ),
)
_STORING = (
    option(
        "--write",
        "Store the result inside the model file. A calibration next to the file is deleted, "
        "because it would take precedence.",
        name="is_inside",
    ),
    option(
        "-o --output FILE",
        "File to write: the calibration or, with --write, a copy of the model. [default: "
        "MODEL.gguf.calibration.json; with --write the model itself]",
        PathType(),
    ),
    option(
        "--export FILE",
        "Also write all measurements as tables: FILE.npz for numpy, or FILE.csv and three files "
        "next to it. Columns: docs/calibration-file.md.",
        PathType(),
    ),
    option(
        "--plot FOLDER",
        "Also draw the measurements, into this folder; needs the extra plot: scripts/setup plot.",
        PathType(file_okay=False),
        name="plots",
    ),
)


def calibration_options(command: Command) -> Command:
    """Add all options of the command."""
    others = (flags("activation", "threads", "kernels"), json_option)
    return add_flags(command, model_option, *_MEASURING, *_STORING, *others)
