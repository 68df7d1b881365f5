"""The chart of decode speeds: llama.cpp on the same machine is 1."""

from collections.abc import Iterator
from dataclasses import dataclass

from figures.measured import DENSE_MODEL, FORMAT_NAMES, MODEL_NAMES, Measured, Pair, Rates
from figures.svg import Picture

__all__ = ["draw_chart"]

_WIDTH, _LEFT, _RIGHT = 820, 268, 756
_ROW, _BAR = 21, 13


@dataclass(frozen=True)
class _Bar:
    label: str
    look: str
    ratio: Rates


@dataclass(frozen=True)
class _Group:
    heading: str
    remark: str
    bars: tuple[_Bar, ...]


def draw_chart(measured: Measured) -> str:
    """The SVG file."""
    groups = _groups(measured)
    rows = sum(len(group.bars) for group in groups)
    height = 118 + _ROW * rows + 50 * len(groups)
    picture = Picture(
        _WIDTH,
        height,
        title="Decode speed, llama.cpp on the same machine = 1",
        description="Bars of the ratio of tokens per second, with the range of the rounds. "
        + " ".join(
            f"{bar.label}: {bar.ratio.value:.2f}." for group in groups for bar in group.bars
        ),
    )
    picture.text(24, 32, "Decode speed, llama.cpp on the same machine = 1", size=16, bold=True)
    layers = [pair.layers for pair in (*measured.intel, *measured.intel_dense)]
    cut = f"cut to {min(layers)} to {max(layers)} layers"
    for line, words in (
        (54, f"Synthetic models in real shapes, {cut}; 2 threads; thin lines: the range measured."),
        (72, "Blue: this engine. Orange: the original PowerInfer."),
    ):
        picture.text(24, line, words, "soft", size=12)
    end = int(max(bar.ratio.high for group in groups for bar in group.bars)) + 1
    y = 84.0
    for group in groups:
        y = _draw_group(picture, group, y, end)
    for number in range(end + 1):
        name = "llama.cpp" if number == 1 else f"{number}×"
        picture.text(_x(number, end), height - 18, name, "soft", size=12, anchor="middle")
    return str(picture)


def _x(ratio: float, end: int) -> float:
    return _LEFT + (_RIGHT - _LEFT) * ratio / end


def _draw_group(picture: Picture, group: _Group, y: float, end: int) -> float:
    """Heading and bars; returns where the next group begins."""
    picture.text(24, y + 18, group.heading, bold=True)
    picture.text(24, y + 35, group.remark, "soft", size=12)
    y += 44
    bottom = y + _ROW * len(group.bars)
    for number in range(end + 1):
        picture.line(_x(number, end), y, _x(number, end), bottom, "grid")
    for bar in group.bars:
        middle = y + _ROW / 2
        picture.text(_LEFT - 12, middle + 4, bar.label, anchor="end", size=12)
        width = _x(bar.ratio.value, end) - _LEFT
        picture.rect(_LEFT, middle - _BAR / 2, width, _BAR, bar.look, radius=2)
        picture.line(_x(bar.ratio.low, end), middle, _x(bar.ratio.high, end), middle, "range")
        beside = max(bar.ratio.high, bar.ratio.value, 1.0)
        value = f"{bar.ratio.value:.2f}×"
        picture.text(_x(beside, end) + 8, middle + 4, value, size=12, bold=True)
        y += _ROW
    # Over the bars: it is what they are compared with.
    picture.line(_x(1, end), bottom - _ROW * len(group.bars), _x(1, end), bottom, "range")
    return y + 6


def _groups(measured: Measured) -> list[_Group]:
    fired = [pair.active for pair in measured.intel]
    return [
        _Group(
            "Intel Xeon, 2 cores, AVX-512 and AMX",
            f"{100 * min(fired):.0f} to {100 * max(fired):.0f} % of the neurons fire",
            tuple(_Bar(_label(pair), "cpu", pair.ratio) for pair in measured.intel),
        ),
        _Group(
            "the same machine, an ordinary model",
            "SwiGLU: every neuron is computed",
            tuple(_Bar(_label(pair), "cpu", pair.ratio) for pair in measured.intel_dense),
        ),
        _Group(
            "AMD Zen 5, 2 cores, AVX-512",
            f"the predictors let {100 * max(measured.original_predicted):.0f} % of the neurons "
            "pass; an earlier version of this engine",
            tuple(_original_bars(measured)),
        ),
        _Group(
            "AMD Zen 4, 2 cores, AVX-512, an ordinary model",
            "SwiGLU: every neuron is computed",
            tuple(_amd_bars(measured)),
        ),
    ]


def _label(pair: Pair) -> str:
    return f"{MODEL_NAMES[pair.model]}, {FORMAT_NAMES[pair.format]}"


def _original_bars(measured: Measured) -> Iterator[_Bar]:
    """Ours, and the original PowerInfer."""
    for (model, format_, _), rates in measured.original.items():
        for engine, look, name in (("ours", "cpu", ""), ("original", "other", "the original: ")):
            label = f"{name}{MODEL_NAMES[model]}, {FORMAT_NAMES[format_]}"
            yield _Bar(label, look, _over(rates[engine], rates["llama.cpp"]))


def _amd_bars(measured: Measured) -> Iterator[_Bar]:
    for (format_, what), rates in measured.amd_dense.items():
        if what == "decode":
            label = f"{MODEL_NAMES[DENSE_MODEL]}, {FORMAT_NAMES[format_]}"
            yield _Bar(label, "cpu", _over(rates["ours"], rates["llama.cpp"]))


def _over(ours: Rates, peer: Rates) -> Rates:
    """Ratio of the quoted speeds; the range is the widest that both ranges allow."""
    return Rates(ours.value / peer.value, ours.low / peer.high, ours.high / peer.low)
