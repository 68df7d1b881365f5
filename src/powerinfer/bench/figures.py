"""Figures as PNG and SVG files: the same look for all plots, the same bytes for the same figures.

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

# Colours that the colour-blind tell apart (Okabe and Ito, Color Universal Design, 2008).
BLUE, ORANGE, GREEN, GRAY = "#0072b2", "#d55e00", "#009e73", "#777777"
BLACK = "#000000"

_SIZE_INCHES = (7.2, 4.8)
_DPI = 120
_LINE_HEIGHT = 0.034  # of the figure, for a line of the facts below
_CHARACTERS = 128  # in such a line
_LONGEST_FACT = 80
_LONGEST_REASON = 300
_ALL = 100  # percent
_BETWEEN = " · "
_SALT = "powerinfer"


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure.

    Attributes:
        name: of its files, without an ending.
        title: what the figure shows.
        draw: draws it.
    """

    name: str
    title: str
    draw: "Callable[[Axes], None]"


def check_plotting() -> None:
    """Check that plots can be drawn.

    Raises:
        UnsupportedError: matplotlib is not installed, and it says how to get it; or it cannot be
            imported.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "plots need matplotlib, which is not installed",
            remedy=f"{how_to_install('plot')}, or leave {{plots}} out",
        )
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.backends.backend_svg  # noqa: F401  what drawing needs besides
    except ImportError as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise UnsupportedError(
            f"plots need matplotlib, which cannot be imported: {reason}",
            remedy="repair its installation, or leave {plots} out",
        ) from error


def draw_all(
    drawings: Sequence[Drawing],
    folder: Path,
    facts: Sequence[str],
    *,
    error: type[PowerInferError],
) -> list[Path]:
    """Draw figures, each as NAME.png and NAME.svg.

    Args:
        drawings: what to draw.
        folder: made if it does not exist.
        facts: what the figures were made from, written below each.
        error: to raise where a file cannot be written; it names the file.

    Returns:
        The files, in order.

    Raises:
        UnsupportedError: matplotlib is not installed.
        PowerInferError: as given.
    """
    check_plotting()
    import matplotlib as mpl

    below = _lines(facts)
    paths = []
    with mpl.rc_context(), warnings.catch_warnings():
        # Pictures are the same whatever style the user's own settings ask for.
        mpl.rcdefaults()
        mpl.rcParams["svg.hashsalt"] = _SALT
        mpl.rcParams["legend.framealpha"] = 1
        # Names of files may have characters that the font lacks; a box in their place is enough.
        warnings.filterwarnings("ignore", message="Glyph")
        for drawing in drawings:
            figure = _figure(drawing, below)
            for ending in ("png", "svg"):
                path = folder / f"{drawing.name}.{ending}"
                paths.append(write_atomically(path, _encoded(figure, ending), error=error))
    return paths


def frame_layers(axes: "Axes", num_layers: int, highest: float) -> None:
    """Axes for a share of the neurons of each layer, with room above for the legend.

    Args:
        axes: to set up.
        num_layers: one bar each.
        highest: percent that is drawn.
    """
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

    # Without pyplot there is no window system and no global state. White shows on any page.
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
    """A figure as a file, without the date or version that would make it differ."""
    content = io.BytesIO()
    metadata = {"Date": None} if ending == "svg" else {"Software": None}
    figure.savefig(content, format=ending, dpi=_DPI, metadata=metadata)
    return content.getvalue()


def _lines(facts: Sequence[str]) -> list[str]:
    """As few lines as hold all facts, none of which is broken."""
    lines: list[str] = []
    for fact in facts:
        short = fact if len(fact) <= _LONGEST_FACT else f"{fact[:_LONGEST_FACT]}..."
        if lines and len(lines[-1]) + len(_BETWEEN) + len(short) <= _CHARACTERS:
            lines[-1] += _BETWEEN + short
        else:
            lines.append(short)
    return lines
