"""Errors a caller may catch; everything the library raises on purpose derives from one base.

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
        # Also shown where an error is printed by its arguments.
        super().__init__(self.worded(_in_python))

    def worded(self, phrase: Callable[[str, str | None], str]) -> str:
        """Join message and remedy.

        Args:
            phrase: called with the name of each option in the remedy and its suggested value, a
                Python literal or None; returns the text to insert.
        """
        remedy = _OPTION.sub(lambda found: phrase(found["name"], found["value"]), self.remedy)
        return ": ".join(part for part in (self.message, remedy) if part)


def _in_python(name: str, value: str | None) -> str:
    return name if value is None else f"{name}={value}"


class GGUFError(PowerInferError):
    """A model file is malformed, incomplete or unreadable; names the file and the key or tensor."""


class CheckpointError(PowerInferError):
    """A checkpoint to convert is malformed, incomplete or inconsistent; names file and tensor."""


class UnsupportedError(PowerInferError):
    """A type, architecture or option is well formed but not implemented; lists those that are."""


class ShapeError(PowerInferError):
    """An array or tensor has the wrong dimensions."""


class DeviceError(PowerInferError):
    """A compute device, its driver or its library is missing or failed."""


class OutOfDeviceMemoryError(DeviceError):
    """The memory of a device is full; a smaller placement may fit."""


class PlacementError(PowerInferError):
    """No placement of neurons fits the memory budget, or a plan contradicts its model."""


class TokenizerError(GGUFError):
    """The vocabulary of a model file is missing or inconsistent, or has no such token."""


class PromptError(PowerInferError):
    """A prompt, context size or sampling parameter given by the user is not valid."""


class ContextLengthError(PromptError):
    """A prompt has more tokens than the context holds."""


class NumericsError(PowerInferError):
    """A computation produced NaN or infinity where only finite numbers make sense."""


class CalibrationError(PowerInferError):
    """A stored calibration is damaged or belongs to another model; names the file and field."""


class HubError(PowerInferError):
    """A model that is elsewhere, such as `hf:ORG/NAME`, cannot be found, fetched or stored."""


class TaskError(PowerInferError):
    """An evaluation task is unknown, or its file is missing or malformed; names file and line."""


class MeasurementError(PowerInferError):
    """A file of measurements is damaged, cannot be written or belongs to something else."""
