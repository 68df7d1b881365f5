"""GPU memory budgets: parsing what users write, and converting it to bytes."""

import re
from dataclasses import dataclass

from powerinfer.errors import PromptError

__all__ = ["MARGIN_BYTES", "VramBudget", "parse_vram_budget", "read_vram_budget"]

# PowerInfer, too, keeps this much of the free memory unused if no budget is given.
MARGIN_BYTES = 256 << 20
# GPU memory is sold in powers of two, whatever the unit on the box.
_UNIT_BITS = {"t": 40, "g": 30, "m": 20, "k": 10}
_AMOUNT = re.compile(
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?:(?P<unit>[tgmk])(?:i?b)?|(?P<share>%))?"
)
# Nothing fits in less. Whether some part of a model fits in more is for the plan to say.
_SMALLEST_BYTES = 1 << 10
# More than any machine has, and small enough that no product overflows.
_LARGEST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class VramBudget:
    """A budget in bytes or as a share; exactly one is set.

    Attributes:
        num_bytes: bytes to use.
        share: share of the free memory to use, above 0 and at most 1.
    """

    num_bytes: int | None = None
    share: float | None = None

    def of_free(self, free_bytes: int) -> int:
        """Budget in bytes on a device with this much free memory; it may exceed what is free."""
        if self.num_bytes is not None:
            return self.num_bytes
        return int(free_bytes * (1.0 if self.share is None else self.share))


def parse_vram_budget(text: str) -> VramBudget:
    """Parse ``8``, ``8GiB``, ``8G``, ``7.5``, ``512MiB`` or ``50%``; a bare number is in GiB.

    All units are powers of two, with or without the ``i``: ``8GB`` is ``8GiB``. PowerInfer's
    default, ``-1``, is refused: here, leaving the option out means that.

    Raises:
        PromptError: the text is none of these, below 1 KiB, or absurdly large.
    """
    found = _AMOUNT.fullmatch(text.strip().lower())
    number = float(found["number"]) if found else 0.0
    if found and found["share"] and 0 < number <= 100:
        return VramBudget(share=number / 100)
    if found and not found["share"]:
        num_bytes = number * (1 << _UNIT_BITS[found["unit"] or "g"])
        if _SMALLEST_BYTES <= num_bytes <= _LARGEST_BYTES:
            return VramBudget(num_bytes=int(num_bytes))
        if 0 < num_bytes < _SMALLEST_BYTES:
            raise PromptError(
                f"a GPU memory budget of {text.strip()!r:.60} is too small to hold anything; the "
                f"smallest is 1KiB, and a bare number means GiB"
            )
    raise PromptError(
        f"a GPU memory budget is an amount above 0 such as 8, 8G or 8GiB (2^30 bytes), 512M, or up "
        f"to 100% of what is free, such as 50%; got {text!r:.60}. Leave it out to take all free "
        f"memory less {MARGIN_BYTES >> 20} MiB"
    )


def read_vram_budget(value: object) -> VramBudget:
    """Check the option: what `parse_vram_budget` accepts, a number of GiB, or a budget.

    Raises:
        PromptError: as above; names the option.
        ValueError: the value is of another type.
    """
    if isinstance(value, VramBudget):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("an amount of GPU memory such as 8 or '8GiB', or a share such as '50%'")
    try:
        return parse_vram_budget(str(value))
    except PromptError as error:
        raise PromptError(f"option vram_budget: {error.message}", remedy=error.remedy) from None
