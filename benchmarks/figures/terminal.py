"""Pictures of a terminal in which a command really ran, drawn by rich."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

__all__ = ["draw_terminal"]

# rich names a font on a server of the network.
_FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def draw_terminal(words: list[str], folder: Path, columns: int = 92) -> str:
    """Run `powerinfer` and draw its output as SVG; lines of stderr are dimmed.

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
    console = Console(record=True, width=columns, file=io.StringIO(), color_system="truecolor")
    shown = " ".join(f'"{word}"' if " " in word else word for word in words)
    console.print(Text.assemble(("$ ", "bold green"), (f"powerinfer {shown}", "bold")))
    before, _, after = done.stderr.strip().partition("\n")
    for text, style in ((before, "dim"), (done.stdout.strip(), ""), (after.strip(), "dim")):
        if text:
            console.print(Text(text, style), highlight=False)
    drawn = console.export_svg(title="powerinfer", unique_id=words[0])
    return _FONT_FACE.sub("", drawn).replace("Fira Code", _FONT) + "\n"
