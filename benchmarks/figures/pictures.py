"""Plots of the results in docs/images."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from figures import models, sparsify
from figures.models import Rates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "Picture"]

_BLUE, _ORANGE, _GREEN, _GRAY = "#0072b2", "#d55e00", "#009e73", "#59636e"
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "powerinfer",
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#d1d9e0",
    "lines.linewidth": 1.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


@dataclass(frozen=True)
class Picture:
    """A plot of values. Only `svg` needs matplotlib.

    Attributes:
        title: of the plot.
        remark: written below it.
        facts: every value that is drawn, in words. The file has them as its description, so that
            it can be compared with the results whichever version of matplotlib drew it.
        draw: draws the values.
        height: inches.
    """

    title: str
    remark: str
    facts: str
    draw: "Callable[[Figure], None]"
    height: float

    def svg(self) -> str:
        """Draw the file; the same results and matplotlib give the same bytes."""
        import matplotlib as mpl
        from matplotlib.figure import Figure

        content = io.StringIO()
        about = {"Title": self.title, "Description": self.facts, "Date": None, "Creator": None}
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(_STYLE)
            # White shows on a light and on a dark page.
            figure = Figure((8.5, self.height), facecolor="white", layout="constrained")
            figure.suptitle(self.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
            figure.supxlabel(self.remark, x=0.01, ha="left", fontsize=9, color=_GRAY)
            self.draw(figure)
            figure.savefig(content, format="svg", metadata=about)
        return content.getvalue()

    def is_shown_by(self, svg: str) -> bool:
        """Check that a file has this title, remark and these values."""
        facts = f"<dc:description>{self.facts}</dc:description>"
        return all(words in svg for words in (facts, self.title, *self.remark.splitlines()))


def _groups() -> Iterator[tuple[str, dict[str, Rates]]]:
    """Heading and bars, a group for each machine and kind of model."""
    sparse, machine = models.sparse(), f"{models.MACHINE}, 2 cores"
    fired = [100 * speed.active for speed in sparse]
    yield (
        f"{machine}: {min(fired):.0f} to {max(fired):.0f} % of the neurons fire",
        {f"{speed.model}, {speed.format}": speed.ratio for speed in sparse}
        | {f"the original: {name}": ratio for name, ratio in models.original_ratios().items()},
    )
    yield (
        f"{machine}: an ordinary model (SwiGLU)",
        {f"{speed.model}, {speed.format}": speed.ratio for speed in models.dense("decode")},
    )
    yield (
        "AMD Zen 4, 2 cores, AVX-512, 2026-11-23: an ordinary model (SwiGLU)",
        {
            f"{models.DENSE}, {form}": rates["ours"].over(rates["llama.cpp"])
            for form, rates in models.amd_dense("decode").items()
        },
    )


def _decode_speed() -> Picture:
    groups = dict(_groups())
    layers = [speed.layers for speed in (*models.sparse(), *models.dense("decode"))]

    def draw(figure: "Figure") -> None:
        sizes = [len(bars) for bars in groups.values()]
        rows = figure.subplots(len(groups), sharex=True, height_ratios=sizes)
        for axes, (heading, bars) in zip(rows, groups.items(), strict=True):
            values = [rates.value for rates in bars.values()]
            ranges = [
                (rates.value - rates.low, rates.high - rates.value) for rates in bars.values()
            ]
            colors = [_ORANGE if "original" in label else _BLUE for label in bars]
            xerr = list(zip(*ranges, strict=True))
            drawn = axes.barh(list(bars), values, 0.65, xerr=xerr, color=colors)
            for bar, label in zip(drawn, bars, strict=True):
                bar.set_gid(f"bar: {label}")
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0}
            axes.bar_label(drawn, fmt="%.2f×", padding=5, fontweight="bold", bbox=box)
            axes.set_title(heading)
            axes.axvline(1, color="black")
            axes.margins(y=0.02)
            axes.invert_yaxis()
        end = int(max(rates.high for bars in groups.values() for rates in bars.values())) + 1
        axes.set_xlim(0, end + 0.5)
        axes.set_xticks(range(end + 1), ["0×", "llama.cpp", *(f"{n}×" for n in range(2, end + 1))])

    return Picture(
        "Decode speed, llama.cpp on the same machine = 1",
        "Blue: this engine. Orange: the original PowerInfer.\n"
        "Thin lines: the range measured. "
        f"Synthetic models in real shapes, {min(layers)} to {max(layers)} layers; 2 threads.",
        "; ".join(
            f"{heading}: "
            + ", ".join(f"{label} {rates.value:.2f} ({rates})" for label, rates in bars.items())
            for heading, bars in groups.items()
        ),
        draw,
        6.8,
    )


def _sparsify_budgets() -> Picture:
    looks = {"reglu": _BLUE, "drelu": _GREEN, "drelu-distilled": _ORANGE}
    budgets = {f"{sparsify.millions(n)} tokens": runs for n, runs in sparsify.budgets().items()}
    lines = {
        key: [
            (name, sparsify.above(runs[key], runs["swiglu"]), sparsify.mean_zeros(runs[key]))
            for name, runs in budgets.items()
        ]
        for key in looks
    }

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        for key, points in lines.items():
            names, values, _ = zip(*points, strict=True)
            axes.plot(names, values, "o-", color=looks[key], label=sparsify.VARIANTS[key])
            for name, value, zeros in points:
                # The lines of both kinds of dReLU cross.
                offset = (-30, 4) if key == "drelu-distilled" else (7, 4)
                axes.annotate(
                    f"{zeros:.0f} %",
                    (name, value),
                    offset,
                    textcoords="offset points",
                    color=looks[key],
                )
        axes.axhline(0, color="black")
        axes.margins(x=0.1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g} %" if value else "SwiGLU")
        axes.grid(visible=False, axis="x")
        axes.grid(visible=True, axis="y")
        axes.legend(loc="upper center", frameon=False)

    return Picture(
        "Held-out perplexity above SwiGLU's after equal tokens",
        "Next to a point: share of neurons that are zero.",
        "; ".join(
            f"{sparsify.VARIANTS[key]}: "
            + ", ".join(f"{name} {above:+.2f} % ({zeros:.0f} %)" for name, above, zeros in points)
            for key, points in lines.items()
        ),
        draw,
        4.2,
    )


PICTURES: dict[str, Callable[[], Picture]] = {
    "decode-speed.svg": _decode_speed,
    "sparsify-budgets.svg": _sparsify_budgets,
}
