"""Figures as PNG and SVG files with one look and reproducible bytes.

matplotlib is imported here, and only when figures are drawn.
"""

import importlib.util
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from powerinfer._extras import how_to_install
from powerinfer._files import write_atomically
from powerinfer.errors import PowerInferError, UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLACK",
    "BLUE",
    "GRAY",
    "GREEN",
    "ORANGE",
    "Drawing",
    "check_plotting",
    "draw_all",
    "frame_layers",
]

# Colors for the color-blind (Okabe and Ito, Color Universal Design, 2008).
BLUE, ORANGE, GREEN, GRAY = "#0072b2", "#d55e00", "#009e73", "#777777"
BLACK = "#000000"

_SIZE_INCHES = (7.2, 4.8)
_DPI = 120
_LINE_HEIGHT = 0.034  # share of the figure's height for one line of facts
_CHARACTERS = 128  # in one line of facts
_LONGEST_FACT = 80
_LONGEST_REASON = 300
_ALL = 100  # percent
_BETWEEN = " · "
_SALT = "powerinfer"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure to draw, and the name of its files without suffix."""

    name: str
    title: str
    draw: "Callable[[Axes], None]"


def check_plotting() -> None:
    """Check that matplotlib is installed and can be imported."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "plots need matplotlib, which is not installed",
            remedy=f"{how_to_install('plot')}, or leave {{plots}} out",
        )
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.backends.backend_svg  # noqa: F401  needed for drawing
    except ImportError as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise UnsupportedError(
            f"plots need matplotlib, which cannot be imported: {reason}",
            remedy="repair its installation, or leave {plots} out",
        ) from error


def draw_all(
    drawings: Sequence[Drawing], folder: Path, facts: Sequence[str], *, error: type[PowerInferError]
) -> list[Path]:
    """Draw figures, each as NAME.png and NAME.svg, and return the files in order.

    Raises:
        UnsupportedError: matplotlib is not installed.
        PowerInferError: a file cannot be written (the type is `error`).
    """
    check_plotting()
    import matplotlib as mpl

    below = _lines(facts)
    paths = []
    with mpl.rc_context(), warnings.catch_warnings():
        # The user's own matplotlib style must not change the figures.
        mpl.rcdefaults()
        mpl.rcParams["svg.hashsalt"] = _SALT
        mpl.rcParams["legend.framealpha"] = 1
        # File names may contain characters the font lacks; a box in their place is good enough.
        warnings.filterwarnings("ignore", message="Glyph")
        for drawing in drawings:
            figure = _figure(drawing, below)
            for ending in ("png", "svg"):
                path = folder / f"{drawing.name}.{ending}"
                paths.append(write_atomically(path, _encoded(figure, ending), error=error))
    return paths


def frame_layers(axes: "Axes", num_layers: int, highest: float) -> None:
    """Set up axes for a share of each layer's neurons, with room for the legend on top."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("layer")
    axes.set_ylabel("share of the layer's neurons (%)")
    axes.set_xlim(-0.6, num_layers - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1.3 * max(1.0, highest))
    axes.set_yticks([tick for tick in axes.get_yticks() if tick <= _ALL])
    axes.legend(loc="upper right")


def _figure(drawing: Drawing, below: Sequence[str]) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # Figures made without pyplot need no window system and no global state. White shows on any
    # page.
    height = _LINE_HEIGHT * (len(below) + 0.7)
    layout = ConstrainedLayoutEngine(rect=(0.005, height, 0.985, 1 - height - 0.01))
    figure = Figure(figsize=_SIZE_INCHES, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    drawing.draw(axes)
    axes.grid(visible=True, alpha=0.3)
    axes.set_axisbelow(True)
    axes.set_title(drawing.title, loc="left", fontsize=11, fontweight="bold")
    for line, text in enumerate(reversed(below)):
        y = _LINE_HEIGHT * (line + 0.4)
        figure.text(0.012, y, text, fontsize=7.5, color="#444444", parse_math=False)
    return figure


def _encoded(figure: "Figure", ending: str) -> bytes:
    """Encode a figure without the date or version that would make files differ."""
    content = io.BytesIO()
    metadata = {"Date": None} if ending == "svg" else {"Software": None}
    figure.savefig(content, format=ending, dpi=_DPI, metadata=metadata)
    return content.getvalue()


def _lines(facts: Sequence[str]) -> list[str]:
    """Pack facts into as few lines as possible without breaking any fact."""
    lines: list[str] = []
    for fact in facts:
        short = fact if len(fact) <= _LONGEST_FACT else f"{fact[:_LONGEST_FACT]}..."
        if lines and len(lines[-1]) + len(_BETWEEN) + len(short) <= _CHARACTERS:
            lines[-1] += _BETWEEN + short
        else:
            lines.append(short)
    return lines
