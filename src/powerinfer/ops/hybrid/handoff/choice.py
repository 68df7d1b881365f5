"""Which way of handing layers to the CPU recorded steps use: measured once, left when it fails."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from powerinfer.errors import DeviceError
from powerinfer.ops.hybrid.handoff.methods import Handoff

__all__ = [
    "FAILURES",
    "HandoffChoice",
    "HandoffFigures",
    "HandoffKind",
    "SwitchedHandoff",
]

_log = logging.getLogger(__name__)

# torch reports what the driver refuses as RuntimeError.
FAILURES = (DeviceError, RuntimeError)


@dataclass(frozen=True, slots=True)
class HandoffFigures:
    """What it costs to hand a layer to the CPU and back when the CPU has nothing to do.

    Attributes:
        median_s: seconds.
        p99_s: seconds that one in a hundred exceeds.
    """

    median_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class HandoffKind:
    """A way of handing over that can be recorded.

    Attributes:
        name: of it, see `Handoff.name`.
        make: builds it; DeviceError where this machine lacks it.
        spared_by: name of a kind that makes this one superfluous where it works, or None.
    """

    name: str
    make: Callable[[], Handoff]
    spared_by: str | None = None


class SwitchedHandoff:
    """The hand-off that a step calls, whichever way is in use; notes the layers in their order.

    Attributes:
        chosen: the way in use.
        layers: signalled since the step began.
    """

    def __init__(self, chosen: Handoff) -> None:
        """Begin with one way."""
        self.chosen = chosen
        self.layers: list[int] = []

    @property
    def name(self) -> str:
        """Of the way in use."""
        return self.chosen.name

    def begin_step(self, num_tokens: int, layers: Sequence[int]) -> None:
        """See `Handoff`."""
        self.layers.clear()
        self.chosen.begin_step(num_tokens, layers)

    def signal(self, layer: int, num_tokens: int) -> None:
        """See `Handoff`."""
        self.layers.append(layer)
        self.chosen.signal(layer, num_tokens)

    def wait(self, layer: int, num_tokens: int) -> None:
        """See `Handoff`."""
        self.chosen.wait(layer, num_tokens)

    def end_step(self) -> None:
        """See `Handoff`."""
        self.chosen.end_step()


class HandoffChoice:
    """The ways that can be recorded, the fastest first; each is given up at its first failure.

    Attributes:
        figures: what the ways that were measured cost, by name.
    """

    def __init__(
        self,
        kinds: Sequence[HandoffKind],
        plain: Handoff | None,
        measure: Callable[[Handoff], HandoffFigures],
    ) -> None:
        """Nothing is built or measured before it is needed.

        Args:
            kinds: ways to try.
            plain: stands in for a way in steps that hand no layer over; None where nothing shall be
                recorded.
            measure: cost of a way; raises one of FAILURES where it does not work.
        """
        self.figures: dict[str, HandoffFigures] = {}
        self._kinds = kinds
        self._plain = plain
        self._measure = measure
        self._ways: list[Handoff] | None = None

    def best(self, *, hands_over: bool) -> Handoff | None:
        """The way to record with; None if the step must run eagerly.

        Args:
            hands_over: whether the step has layers for the CPU. Only then the ways are measured.
        """
        if self._plain is None or not hands_over:
            return self._plain
        if self._ways is None:
            self._ways = self._measured()
        return self._ways[0] if self._ways else None

    def give_up(self, way: Handoff, error: BaseException) -> None:
        """Never use a way again, and say why.

        Raises:
            KeyboardInterrupt: the error came of one; the way stays.
        """
        cause = cause_of(error)
        if way is self._plain:
            self._plain = None
            _log.warning("steps run without being recorded, which is slower: %s", cause)
            return
        ways = self._ways or []
        if way in ways:
            ways.remove(way)
            _warn(way.name, cause, ways[0].name if ways else None)

    @property
    def is_exhausted(self) -> bool:
        """Whether no step can be recorded any more."""
        return self._plain is None or self._ways == []

    def _measured(self) -> list[Handoff]:
        ways: list[Handoff] = []
        for kind in self._kinds:
            if kind.spared_by in self.figures:
                continue
            try:
                way = kind.make()
                self.figures[kind.name] = self._measure(way)
            except FAILURES as error:
                _warn(kind.name, cause_of(error), "another way")
            else:
                ways.append(way)
        ways.sort(key=lambda way: self.figures[way.name].median_s)
        for name, found in self.figures.items():
            _log.info(
                "hand-off by %s: median %.1f us, p99 %.1f us",
                name,
                found.median_s * 1e6,
                found.p99_s * 1e6,
            )
        if not ways:
            _log.warning("no way of handing over can be recorded: steps run eagerly, slower")
        return ways


def cause_of(error: BaseException) -> BaseException:
    """What an error began with: torch ends a failed recording with an error of its own.

    Raises:
        KeyboardInterrupt: it began with one.
    """
    first = error
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    if isinstance(first, KeyboardInterrupt):
        raise first
    return first


def _warn(name: str, cause: BaseException, successor: str | None) -> None:
    rest = f"trying {successor}" if successor else "steps run eagerly from now on, slower"
    _log.warning("handing layers to the CPU by %s failed: %s; %s", name, cause, rest)
