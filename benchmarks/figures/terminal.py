"""Pictures of a terminal in which the commands really ran, drawn by rich."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

__all__ = ["TerminalPicture"]

# rich names a font on a server of the network.
_FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class TerminalPicture:
    """One command, and what it printed."""

    def __init__(self, name: str, columns: int = 92) -> None:
        """Take an empty terminal.

        Args:
            name: of the picture; its parts are named after it.
            columns: width of the terminal.
        """
        self._name = name
        self._console = Console(
            record=True, width=columns, file=io.StringIO(), color_system="truecolor"
        )

    def run(self, words: list[str], folder: Path) -> None:
        """Run `powerinfer` with these words and take in what a terminal shows.

        What goes to stderr before and after the text on stdout is shown dimmed.

        Args:
            words: of the command line.
            folder: where it runs; also its cache lies there.

        Raises:
            subprocess.CalledProcessError: the command failed.
        """
        done = subprocess.run(
            [sys.executable, "-m", "powerinfer", *words],
            cwd=folder,
            env={**os.environ, "XDG_CACHE_HOME": str(folder)},
            check=True,
            capture_output=True,
            text=True,
        )
        shown = " ".join(f'"{word}"' if " " in word else word for word in words)
        self._console.print(Text.assemble(("$ ", "bold green"), (f"powerinfer {shown}", "bold")))
        before, _, after = done.stderr.strip().partition("\n")
        for text, style in ((before, "dim"), (done.stdout.strip(), ""), (after.strip(), "dim")):
            if text:
                self._console.print(Text(text, style), highlight=False)

    def __str__(self) -> str:
        """The SVG file."""
        drawn = self._console.export_svg(title="powerinfer", unique_id=self._name)
        return _FONT_FACE.sub("", drawn).replace("Fira Code", _FONT) + "\n"
