"""The hand-off of recorded steps, given up when it fails."""

import logging
from collections.abc import Callable

from powerinfer.errors import DeviceError, OutOfDeviceMemoryError
from powerinfer.ops.gpu.memory import KernelError, is_out_of_memory
from powerinfer.ops.hybrid.handoff.methods import Handoff

__all__ = ["FAILURES", "HandoffChoice", "cause_of", "is_exhaustion"]

_log = logging.getLogger(__name__)

# torch reports refusals of the driver as RuntimeError; errors of Triton are KernelErrors here.
FAILURES = (DeviceError, RuntimeError)


class HandoffChoice:
    """The hand-off to record steps with, and whether steps can be recorded at all."""

    def __init__(self, make: Callable[[], Handoff], eager: Handoff | None) -> None:
        """Make nothing before a step needs it.

        Args:
            make: makes a method that can be recorded; raises one of FAILURES if it does not work.
            eager: method of recorded steps that hand no layer over; None: record nothing.
        """
        self._make = make
        self._eager = eager
        self._handoff: Handoff | None = None
        self._has_failed = False

    def best(self, *, hands_over: bool) -> Handoff | None:
        """Return the hand-off to record with; None if the step must run eagerly.

        Raises:
            OutOfDeviceMemoryError: there is no room to try it out.
        """
        if self._eager is None or not hands_over:
            return self._eager
        if self._handoff is None and not self._has_failed:
            try:
                self._handoff = self._make()
            except FAILURES as error:
                if is_exhaustion(error):
                    raise OutOfDeviceMemoryError(
                        "the device has no room to try out a hand-off",
                        remedy="use a smaller {vram_budget}",
                    ) from error
                self._give_up(error)
        return self._handoff

    def abandon(self, handoff: Handoff, error: BaseException) -> None:
        """Never record with a hand-off again, and log the reason.

        Raises:
            KeyboardInterrupt: it caused the error; the hand-off stays.
        """
        if handoff is self._eager:
            cause = cause_of(error)
            self._eager = None
            _log.warning("steps run without being recorded, which is slower: %s", str(cause))
        elif handoff is self._handoff:
            self._give_up(error)

    @property
    def is_exhausted(self) -> bool:
        """True if no step can be recorded any more."""
        return self._eager is None or self._has_failed

    def _give_up(self, error: BaseException) -> None:
        cause = cause_of(error)
        self._handoff, self._has_failed = None, True
        _log.warning(
            "handing layers to the CPU in recorded steps failed: %s; steps run eagerly from now "
            "on, slower",
            str(cause),
        )


def cause_of(error: BaseException) -> BaseException:
    """Return the first cause of an error: torch ends a failed recording with another error.

    Raises:
        KeyboardInterrupt: it is the first cause.
    """
    first, passed = error, {id(error)}
    # If an error is raised twice, the chain may be a cycle.
    # The cause of a KernelError takes many lines.
    while (
        not isinstance(first, KernelError)
        and (before := first.__cause__ or first.__context__)
        and id(before) not in passed
    ):
        first = before
        passed.add(id(first))
    if isinstance(first, KeyboardInterrupt):
        raise first
    return first


def is_exhaustion(error: BaseException) -> bool:
    """Test whether the cause of an error is a lack of memory of the device or page-locked memory.

    Raises:
        KeyboardInterrupt: it is the first cause.
    """
    return is_out_of_memory(cause_of(error))
