"""The errors a caller may catch; everything the library raises on purpose derives from one base.

::

    PowerInferError
    +-- GGUFError          a model file is malformed, unreadable or misses something
    |   +-- TokenizerError     its vocabulary cannot be used, or has no such token
    +-- CheckpointError    a checkpoint to convert is malformed, incomplete or contradicts itself
    +-- UnsupportedError   well formed, but a type, architecture or option we do not implement
    +-- ShapeError         an array or tensor has other dimensions than it must have
    +-- DeviceError        a device or its library is missing or failed
    |   +-- OutOfDeviceMemoryError   its memory is full; less may be placed on it
    +-- PlacementError     no plan fits the memory budget, or a plan breaks its invariants
    +-- PromptError        bad prompt, context or sampling input from the user
    |   +-- ContextLengthError the prompt has more tokens than the context holds
    +-- CalibrationError   a calibration file is damaged, or belongs to another model
    +-- HubError           a model on the Hugging Face Hub cannot be found, chosen or fetched
    +-- TaskError          an evaluation task is unknown, or its file is missing or malformed
    +-- MeasurementError   a file of measurements is damaged, or was measured of something else
    +-- NumericsError      a computation produced NaN or infinity

A message says what was got and what was wanted, a remedy what to do about it. A remedy names
options in braces, as Python writes them: ``{context_length}``, ``{device='cpu'}``. Python users
read exactly that; the command line puts its flags there.
"""

import re
from collections.abc import Callable

__all__ = [
    "CalibrationError",
    "CheckpointError",
    "ContextLengthError",
    "DeviceError",
    "GGUFError",
    "HubError",
    "MeasurementError",
    "NumericsError",
    "OutOfDeviceMemoryError",
    "PlacementError",
    "PowerInferError",
    "PromptError",
    "ShapeError",
    "TaskError",
    "TokenizerError",
    "UnsupportedError",
]


_OPTION = re.compile(r"\{(?P<name>\w+)(?:=(?P<value>[^{}]*))?\}")


class PowerInferError(Exception):
    """Base of every error raised on purpose; the command line prints it and exits with 2.

    Attributes:
        message: what was got and what was wanted.
        remedy: what to do about it, with options in braces; may say everything, or be empty.
    """

    def __init__(self, message: object = "", *, remedy: str = "") -> None:
        self.message = str(message)
        self.remedy = remedy
        # What Python users read, also where an error is shown by its arguments.
        super().__init__(self.worded(_in_python))

    def worded(self, phrase: Callable[[str, str | None], str]) -> str:
        """Message and remedy as one text.

        Args:
            phrase: called with the name of each option in the remedy and the value that it should
                have, a Python literal or None; returns what to write there.
        """
        remedy = _OPTION.sub(lambda found: phrase(found["name"], found["value"]), self.remedy)
        return ": ".join(part for part in (self.message, remedy) if part)


def _in_python(name: str, value: str | None) -> str:
    return name if value is None else f"{name}={value}"


class GGUFError(PowerInferError):
    """A model file cannot be read: names the file, the key or tensor, and what was wrong."""


class CheckpointError(PowerInferError):
    """A checkpoint cannot be read: names the file, the key or tensor, and what was wrong."""


class UnsupportedError(PowerInferError):
    """Something well formed that is not implemented; the message lists what is."""


class ShapeError(PowerInferError):
    """An array or tensor does not have the dimensions its user needs."""


class DeviceError(PowerInferError):
    """A compute device, its driver or its library is missing or failed."""


class OutOfDeviceMemoryError(DeviceError):
    """What was placed on a device does not fit its memory; a smaller placement may."""


class PlacementError(PowerInferError):
    """No placement of neurons fits the budget, or a plan contradicts its model."""


class TokenizerError(GGUFError):
    """The vocabulary of a model file is missing or inconsistent, or has no such token."""


class PromptError(PowerInferError):
    """A prompt, context size or sampling parameter given by the user is not valid."""


class ContextLengthError(PromptError):
    """A prompt has more tokens than the context holds."""


class NumericsError(PowerInferError):
    """A computation produced NaN or infinity where only finite numbers make sense."""


class CalibrationError(PowerInferError):
    """A stored calibration cannot be used: names the file and field, and what to do about it."""


class HubError(PowerInferError):
    """A model on the Hugging Face Hub cannot be found, chosen, fetched or stored."""


class TaskError(PowerInferError):
    """An evaluation task cannot be used: names its file and line, and what was wrong there."""


class MeasurementError(PowerInferError):
    """A file of measurements cannot be used or written: names it, and what was wrong."""
