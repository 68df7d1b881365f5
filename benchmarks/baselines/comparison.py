"""What is below an earlier file of `scripts/baseline`."""

from collections.abc import Callable

from baselines import goldens, mutation, reports, speed, steps
from baselines.origin import Section

__all__ = ["compare"]

_SECTIONS: dict[str, Callable[[Section, Section], list[str]]] = {
    "tests": reports.below,
    "mutation": mutation.below,
    "speed": speed.below,
    "goldens": goldens.below,
    "ci": steps.below,
}


def compare(old: Section, new: Section) -> list[str]:
    """A line for everything that is below `old`, also for sections that were not measured."""
    lines = []
    for name, below in _SECTIONS.items():
        if name in old:
            found = below(old[name], new[name]) if name in new else ["not measured"]
            lines += [f"{name}: {line}" for line in found]
    return lines
