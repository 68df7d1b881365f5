"""Calls of the tokenizers library on files of a checkpoint, which may be damaged."""

from collections.abc import Iterator
from contextlib import contextmanager

from powerinfer._program_end import library_call
from powerinfer.errors import PowerInferError

__all__ = ["library_errors"]

_LONGEST_REASON = 200


@contextmanager
def library_errors(problem: str, error: type[PowerInferError]) -> Iterator[None]:
    """Surround a call of the library and raise its errors as `error`.

    The library reports damaged input by panics, which are not Exceptions.
    """
    try:
        with library_call():
            yield
    except (KeyboardInterrupt, SystemExit, MemoryError, PowerInferError):
        raise
    except BaseException as reason:  # noqa: BLE001  panics are not Exceptions
        raise error(f"{problem}: {str(reason)[:_LONGEST_REASON]}") from None
