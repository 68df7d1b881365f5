"""The errors a caller may catch; everything the library raises on purpose derives from one base.

::

    PowerInferError
    +-- GGUFError          a model file is malformed, unreadable or misses something
    |   +-- TokenizerError     its vocabulary cannot be used, or has no such token
    +-- UnsupportedError   well formed, but a type, architecture or option we do not implement
    +-- ShapeError         an array or tensor has other dimensions than it must have
    +-- DeviceError        a device or its library is missing or failed
    |   +-- OutOfDeviceMemoryError   its memory is full; less may be placed on it
    +-- PlacementError     no plan fits the memory budget, or a plan breaks its invariants
    +-- PromptError        bad prompt, context or sampling input from the user
    +-- CalibrationError   a calibration file is damaged, or belongs to another model
    +-- NumericsError      a computation produced NaN or infinity

A message says what was got, what was wanted and what to do about it.
"""

__all__ = [
    "CalibrationError",
    "DeviceError",
    "GGUFError",
    "NumericsError",
    "OutOfDeviceMemoryError",
    "PlacementError",
    "PowerInferError",
    "PromptError",
    "ShapeError",
    "TokenizerError",
    "UnsupportedError",
]


class PowerInferError(Exception):
    """Base of every error raised on purpose; the command line prints it and exits with 2."""


class GGUFError(PowerInferError):
    """A model file cannot be read: names the file, the key or tensor, and what was wrong."""


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


class NumericsError(PowerInferError):
    """A computation produced NaN or infinity where only finite numbers make sense."""


class CalibrationError(PowerInferError):
    """A stored calibration cannot be used: names the file and field, and what to do about it."""
