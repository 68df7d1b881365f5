"""The drawing of the idea: hot neurons on the GPU, cold ones on the CPU, a predictor in front."""

import random

from figures.svg import Picture

__all__ = ["draw_idea"]

_CELL, _GAP, _COLUMNS = 11, 3, 26
_PANEL_X, _PANEL_WIDTH = 264, 396


def draw_idea() -> str:
    """The SVG file; always the same."""
    picture = Picture(
        820,
        348,
        title="How a feed-forward block runs",
        description="A predictor guesses which neurons fire for a token. The GPU computes the hot "
        "ones, the CPU the cold ones, at the same time; neurons that do not fire are skipped. The "
        "two sums are added.",
    )
    _vector(picture, 52, 154, "one token")
    picture.arrow(72, 154, 100, 154)
    _predictor(picture)
    picture.arrow(224, 138, _PANEL_X - 4, 84)
    picture.arrow(224, 170, _PANEL_X - 4, 206)
    pattern = random.Random(5)  # always the same squares
    _neurons(picture, pattern, 24, "gpu", "GPU: hot neurons", "fire for most tokens", (3, 0.72))
    _neurons(picture, pattern, 140, "cpu", "CPU: cold neurons", "fire now and then", (7, 0.08))
    right = _PANEL_X + _PANEL_WIDTH
    picture.arrow(right + 4, 84, 706, 140)
    picture.arrow(right + 4, 206, 706, 166)
    picture.circle(718, 153, 14, "soft")
    picture.text(718, 159, "+", "on-colour", size=19, anchor="middle", bold=True)
    picture.arrow(732, 153, 766, 153)
    _vector(picture, 784, 153, "output")
    picture.text(736, 258, "both compute", "soft", anchor="middle")
    picture.text(736, 276, "at the same time", "soft", anchor="middle")
    _legend(picture)
    return str(picture)


def _vector(picture: Picture, x: float, y: float, name: str) -> None:
    """A column of numbers around (x, y)."""
    picture.rect(x - 13, y - 56, 26, 112, "box", radius=4)
    for number in range(7):
        picture.rect(x - 7, y - 48 + 14 * number, 14, 11, "soft", radius=2)
    picture.text(x, y + 76, name, "ink", anchor="middle")


def _predictor(picture: Picture) -> None:
    picture.rect(104, 112, 118, 84, "box", radius=8)
    for offset, words, bold in (
        (142, "predictor", True),
        (162, "which neurons", False),
        (180, "will fire?", False),
    ):
        picture.text(163, offset, words, "ink", anchor="middle", bold=bold)


def _neurons(
    picture: Picture,
    pattern: random.Random,
    y: float,
    device: str,
    title: str,
    remark: str,
    field: tuple[int, float],
) -> None:
    """A device's panel: rows of neurons of which a share fires."""
    rows, share = field
    pitch = _CELL + _GAP
    picture.rect(_PANEL_X, y, _PANEL_WIDTH, 42 + rows * pitch, f"{device}-panel", radius=8)
    picture.text(_PANEL_X + 16, y + 22, title, "ink", bold=True)
    picture.text(_PANEL_X + _PANEL_WIDTH - 16, y + 22, remark, "soft", anchor="end")
    for row in range(rows):
        for column in range(_COLUMNS):
            look = device if pattern.random() < share else "faint"
            x = _PANEL_X + 16 + column * pitch
            picture.rect(x, y + 34 + row * pitch, _CELL, _CELL, look, radius=2)


def _legend(picture: Picture) -> None:
    y = 306
    picture.rect(36, y, _CELL, _CELL, "gpu", radius=2)
    picture.rect(36 + 15, y, _CELL, _CELL, "cpu", radius=2)
    picture.text(70, y + 10, "fires: computed")
    picture.rect(194, y, _CELL, _CELL, "faint", radius=2)
    picture.text(212, y + 10, "does not fire: skipped, its weights are not read")
    words = "Without a GPU, the CPU computes all neurons that fire. The GPU half is experimental."
    picture.text(36, y + 31, words, "soft")
