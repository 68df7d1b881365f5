"""A budget of GPU memory: read once from the user's text, converted to bytes once."""

import math
import re
from dataclasses import dataclass

from powerinfer.errors import PromptError

__all__ = ["MARGIN_BYTES", "VramBudget", "parse_vram_budget", "read_vram_budget"]

# PowerInfer leaves as much of the free memory alone where no budget is given.
MARGIN_BYTES = 256 << 20
# The memory of GPUs is sold in powers of two, whatever the unit on the box.
_UNIT_BITS = {"t": 40, "g": 30, "m": 20, "k": 10}
_AMOUNT = re.compile(
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?:(?P<unit>[tgmk])(?:i?b)?|(?P<share>%))?"
)
# Less holds nothing; whether more holds something of a model is for the plan to say.
_SMALLEST_BYTES = 1 << 10
# More than any machine has, and small enough that no product overflows.
_LARGEST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class VramBudget:
    """A budget as it was given: one of the two is set.

    Attributes:
        num_bytes: that many; None where a share was given.
        share: of the free memory, above 0 and at most 1; None where bytes were given.
    """

    num_bytes: int | None = None
    share: float | None = None

    def of_free(self, free_bytes: int) -> int:
        """Bytes of a device with that much free memory; may be more than is free."""
        if self.num_bytes is not None:
            return self.num_bytes
        return int(free_bytes * (1.0 if self.share is None else self.share))


def parse_vram_budget(text: str) -> VramBudget:
    """Read ``8``, ``8GiB``, ``8G``, ``7.5``, ``512MiB`` or ``50%``; a bare number is GiB.

    All units are powers of two, with or without the ``i``: ``8GB`` is ``8GiB``. PowerInfer's
    ``-1`` (its default) is refused: leaving the option out says that here.

    Raises:
        PromptError: it is none of these, below 1 KiB, or absurdly large.
    """
    found = _AMOUNT.fullmatch(text.strip().lower())
    if found is None:
        raise _bad(text)
    number = float(found["number"])
    if found["share"]:
        if not 0 < number <= 100:
            raise _bad(text)
        return VramBudget(share=number / 100)
    num_bytes = number * (1 << _UNIT_BITS[found["unit"] or "g"])
    if not math.isfinite(num_bytes) or not 0 < num_bytes <= _LARGEST_BYTES:
        raise _bad(text)
    if num_bytes < _SMALLEST_BYTES:
        raise PromptError(
            f"a GPU memory budget of {text.strip()!r:.60} is too small to hold anything; the "
            f"smallest is 1KiB, and a bare number means GiB"
        )
    return VramBudget(num_bytes=int(num_bytes))


def read_vram_budget(value: object) -> VramBudget:
    """As `parse_vram_budget`, also from a number (of GiB) or from a budget itself.

    Raises:
        PromptError: as above; names the option.
        ValueError: it is no amount at all; says what is wanted.
    """
    if isinstance(value, VramBudget):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("an amount of GPU memory such as 8 or '8GiB', or a share such as '50%'")
    try:
        return parse_vram_budget(str(value))
    except PromptError as error:
        raise PromptError(f"option vram_budget: {error.message}", remedy=error.remedy) from None


def _bad(text: str) -> PromptError:
    return PromptError(
        f"a GPU memory budget is an amount above 0 such as 8, 8G or 8GiB (2^30 bytes), 512M, or up "
        f"to 100% of what is free, such as 50%; got {text!r:.60}. Leave it out to take all free "
        f"memory less {MARGIN_BYTES >> 20} MiB"
    )
