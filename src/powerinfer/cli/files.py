"""Files named on the command line: checking them, and reading them."""

import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

import click

__all__ = [
    "STDIN",
    "ModelPath",
    "PathType",
    "check_folder",
    "check_plots",
    "model_file",
    "read_prompt_bytes",
    "read_text",
    "strip_final_newline",
    "text_name",
    "unreadable",
]

_LARGEST_TEXT = 1 << 30
# The largest contexts there are, of ten million tokens, hold about 50 MB of text.
_LARGEST_PROMPT = 1 << 28
STDIN = Path("-")


class PathType(click.Path):
    """A path as `pathlib.Path`; an empty one, which would mean the current folder, is refused."""

    def __init__(self, *, file_okay: bool = True) -> None:
        """Create the type; see `click.Path`."""
        super().__init__(path_type=Path, file_okay=file_okay)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """Convert one value."""
        if value == "":
            self.fail("the path is empty", param, ctx)
        return Path(os.fsdecode(super().convert(value, param, ctx)))


class ModelPath(PathType):
    """Path of a model, or its name elsewhere; `model_file` and `open_llm` take both.

    A URL is refused, and a path told from a name, before `Path` can change its spelling.
    """

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """Convert one value.

        Raises:
            GGUFError: it is a URL.
            HubError: it begins with `hf:` or `pypi:` but is not a valid name.
        """
        from powerinfer.store.default_model import check_is_no_address, reference_of

        name = os.fspath(value)
        reference = reference_of(name)
        if reference is not None:
            from powerinfer.hub.package_names import parse_model_name

            parse_model_name(reference)
        check_is_no_address(name)
        path = super().convert(value, param, ctx)
        is_path = reference is None and reference_of(str(path)) is not None  # such as `./smollm2`
        return path.absolute() if is_path else path


def model_file(model: Path | None) -> Path:
    """Path of a model file, fetched if needed, with a progress bar.

    Raises:
        PowerInferError: there is no such model, or it cannot be fetched.
    """
    from powerinfer.cli.report.progress import ProgressBar
    from powerinfer.store.default_model import find_model

    with ProgressBar("downloading", unit="bytes") as bar:
        return find_model(model, bar)


def read_prompt_bytes(path: Path) -> bytes:
    """Read a prompt file, which may be a pipe; `-` is stdin.

    One final newline, as editors add, is not part of the prompt.

    Raises:
        click.ClickException: it cannot be read, or is larger than any prompt.
    """
    return strip_final_newline(_read_path(path, _LARGEST_PROMPT))


def unreadable(path: Path, error: OSError) -> click.ClickException:
    """Create the error for a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return click.ClickException(f"{path}: no such file")
    return click.ClickException(f"{path}: cannot be read: {error.strerror or error}")


def read_text(path: Path) -> bytes:
    """Read a UTF-8 text file or pipe as it is; `-` is stdin.

    Raises:
        click.ClickException: it cannot be read or is not UTF-8.
    """
    content = _read_path(path, _LARGEST_TEXT)
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.ClickException(
            f"{'stdin' if path == STDIN else path}: byte {error.start} is not UTF-8; expected a "
            "UTF-8 text"
        ) from None
    return content


def text_name(path: Path) -> str:
    """Name of a text in reports: the file's name, or `stdin`."""
    # The name of a shell's <(...) is a number, meaningless after the command.
    has_name = path != STDIN and path.absolute().parts[1] not in ("dev", "proc")
    return path.name if has_name or path.is_file() else "stdin"


def strip_final_newline(content: bytes) -> bytes:
    """Remove one line end from the end of a prompt."""
    return content.removesuffix(b"\n").removesuffix(b"\r")


def check_folder(path: Path) -> None:
    """Check that a folder, which may not exist yet, can be written to."""
    import tempfile  # heavy, and few commands write

    try:
        folder = path.absolute()
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise click.ClickException(
            f"{path}: cannot write there: {error.strerror or error}"
        ) from None


def check_plots(folder: Path | None) -> None:
    """Check that plots can be drawn into a folder, if one is given.

    Raises:
        PowerInferError: the extra for plots is not installed.
        click.ClickException: the folder cannot be written to.
    """
    if folder is not None:
        from powerinfer.bench.figures import check_plotting

        check_plotting()
        check_folder(folder)


def _read_path(path: Path, largest: int) -> bytes:
    if path == STDIN:
        if sys.stdin is None:
            raise click.ClickException("stdin is closed; name a file instead of -")
        return _read(sys.stdin.buffer, "stdin", largest)
    try:
        # Before opening, because opening a pipe waits for its writer.
        mode = path.stat().st_mode
        if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not _has_an_end(path)):
            raise click.ClickException(f"{path}: is a device; expected a file or a pipe")
        with path.open("rb") as file:
            return _read(file, str(path), largest)
    except OSError as error:
        raise unreadable(path, error) from error


def _has_an_end(device: Path) -> bool:
    """True for devices whose input ends: terminals and /dev/null."""
    with device.open("rb", buffering=0) as file:
        return file.isatty() or device.samefile(os.devnull)


def _read(file: BinaryIO, name: str, largest: int) -> bytes:
    content = file.read(largest + 1)
    if len(content) > largest:
        raise click.ClickException(f"{name}: has more than {largest >> 20} MiB of text")
    return content
