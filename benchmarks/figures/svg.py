"""A small SVG writer: the same calls give the same bytes.

Pictures bring their own background and follow a dark page where the viewer says that it is dark,
so they are readable on either. They name no font that has to be loaded.
"""

from xml.sax.saxutils import escape, quoteattr

__all__ = ["Picture"]

_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
# Colours of a class: on a light page, on a dark one.
_FILLS = {
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9198a1"),
    "gpu": ("#1a7f37", "#3fb950"),
    "cpu": ("#0969da", "#4493f8"),
    "other": ("#bc4c00", "#f0883e"),
    "faint": ("#e7ebef", "#262c36"),
    "on-colour": ("#ffffff", "#0d1117"),
}
_STROKES = {
    "line": ("#59636e", "#9198a1"),
    "grid": ("#d1d9e0", "#3d444d"),
    "range": ("#1f2328", "#e6edf3"),
}
_PANELS = {
    "page": (("#ffffff", "#d1d9e0"), ("#0d1117", "#3d444d")),
    "gpu-panel": (("#f0fbf3", "#1a7f37"), ("#0f1f16", "#3fb950")),
    "cpu-panel": (("#f1f8ff", "#0969da"), ("#101c2b", "#4493f8")),
    "box": (("#f6f8fa", "#59636e"), ("#161b22", "#9198a1")),
}


class Picture:
    """Shapes on a page of its own."""

    def __init__(self, width: int, height: int, *, title: str, description: str) -> None:
        """Start with the background.

        Args:
            width: in pixels.
            height: in pixels.
            title: for those who do not see the picture.
            description: what it shows, for the same readers.
        """
        self._width, self._height = width, height
        self._title, self._description = title, description
        self._shapes: list[str] = []
        self.rect(0.5, 0.5, width - 1, height - 1, "page", radius=10)

    def rect(
        self, x: float, y: float, width: float, height: float, look: str, *, radius: float = 0
    ) -> None:
        """Draw a rectangle; `look` is a class of this module."""
        rounded = f' rx="{_number(radius)}"' if radius else ""
        self._shapes.append(
            f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
            f'height="{_number(height)}"{rounded} class="{look}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, look: str = "line") -> None:
        """Draw a straight line."""
        self._shapes.append(
            f'<line x1="{_number(x1)}" y1="{_number(y1)}" x2="{_number(x2)}" '
            f'y2="{_number(y2)}" class="{look}"/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a line with a head at its end; it must be horizontal or go to the right."""
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        along, across = ((x2 - x1) / length, (y2 - y1) / length), 4.0
        base_x, base_y = x2 - 9 * along[0], y2 - 9 * along[1]
        self.line(x1, y1, base_x, base_y)
        corners = (
            (x2, y2),
            (base_x - across * along[1], base_y + across * along[0]),
            (base_x + across * along[1], base_y - across * along[0]),
        )
        points = " ".join(f"{_number(x)},{_number(y)}" for x, y in corners)
        self._shapes.append(f'<polygon points="{points}" class="soft"/>')

    def circle(self, x: float, y: float, radius: float, look: str) -> None:
        """Draw a disc."""
        self._shapes.append(
            f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}" class="{look}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        look: str = "ink",
        *,
        size: int = 13,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Write words on the line y; `anchor` is `start`, `middle` or `end`."""
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text x="{_number(x)}" y="{_number(y)}" font-size="{size}" '
            f'text-anchor="{anchor}"{weight} class="{look}">{escape(words)}</text>'
        )

    def __str__(self) -> str:
        """The file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self._width}" '
            f'height="{self._height}" viewBox="0 0 {self._width} {self._height}" role="img" '
            f"aria-label={quoteattr(self._title)} font-family={quoteattr(_FONT)}>"
        )
        parts = [
            head,
            f"<title>{escape(self._title)}</title>",
            f"<desc>{escape(self._description)}</desc>",
            f"<style>{_style()}</style>",
            *self._shapes,
            "</svg>",
        ]
        return "\n".join(parts) + "\n"


def _style() -> str:
    """Both sets of colours."""
    light, dark = (_rules(number) for number in (0, 1))
    return f"\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _rules(number: int) -> str:
    rules = [f".{name} {{ fill: {colours[number]} }}" for name, colours in _FILLS.items()]
    rules += [f".{name} {{ stroke: {colours[number]} }}" for name, colours in _STROKES.items()]
    for name, colours in _PANELS.items():
        fill, stroke = colours[number]
        rules.append(f".{name} {{ fill: {fill}; stroke: {stroke} }}")
    return "\n".join(rules)


def _number(value: float) -> str:
    """Up to two decimals, no trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
