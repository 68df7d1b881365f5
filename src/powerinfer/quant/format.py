"""What a quantization format is, and how to find one.

Lives here: the value type `QuantFormat` and the look-up functions. The formats themselves are the
files in ``formats/``, each of which exports ``FORMAT``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer import _plugins
from powerinfer.errors import NumericsError, ShapeError, UnsupportedError
from powerinfer.quant.ggml_types import type_of_id, type_of_name

__all__ = [
    "BlockDecoder",
    "BlockEncoder",
    "QuantFormat",
    "WeightedEncoder",
    "check_importance",
    "format_names",
    "format_of_ggml_type",
    "get_format",
    "internal_format_names",
]

BlockDecoder = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]
"""u8[num_blocks, block_bytes] -> f32[num_blocks, block_size]."""
BlockEncoder = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.uint8]]
"""f32[num_blocks, block_size] -> u8[num_blocks, block_bytes]."""
WeightedEncoder = Callable[
    [npt.NDArray[np.float32], npt.NDArray[np.float32]], npt.NDArray[np.uint8]
]
"""f32[num_blocks, block_size] and its weights in (0, 1] -> u8[num_blocks, block_bytes]."""
BlockBound = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
"""f32[num_blocks, block_size] -> f32[num_blocks, block_size]."""

_PACKAGE = "powerinfer.quant.formats"
_WHAT = "tensor type"

# Temporaries of one step stay near 4 MiB (a megabyte of elements in f32), whatever the tensor.
_ELEMENTS_PER_STEP = 1 << 20

# No weight is 0, so that the step of a block without importance is defined too.
_LEAST_WEIGHT = np.float32(2.0**-24)


@dataclass(frozen=True)
class QuantFormat:
    """A storage format of numbers: blocks of `block_size` elements in `block_bytes` bytes.

    Attributes:
        name: lower-case name, equal to the file name in ``formats/``.
        ggml_type: id in the tensor table of a GGUF file, or None for an internal format that no
            file stores.
        block_size: elements in one block.
        block_bytes: bytes in one block.
        decode_blocks: u8[num_blocks, block_bytes] to f32[num_blocks, block_size].
        encode_blocks: the inverse, or None where there is no encoder.
        bound_blocks: largest |decode(encode(x)) - x| per element, or None without an encoder.
        encode_limit: largest magnitude that the encoder accepts.
        encode_weighted: `encode_blocks` for the least sum of weighted squared errors, or None
            where weights change nothing.
    """

    name: str
    ggml_type: int | None
    block_size: int
    block_bytes: int
    decode_blocks: BlockDecoder
    encode_blocks: BlockEncoder | None = None
    bound_blocks: BlockBound | None = None
    encode_limit: float = math.inf
    encode_weighted: WeightedEncoder | None = None

    @property
    def can_encode(self) -> bool:
        """Whether `encode` and `max_error` are available."""
        return self.encode_blocks is not None

    def num_bytes(self, num_elements: int) -> int:
        """Bytes that a row of `num_elements` takes.

        Raises:
            ShapeError: the row is not a whole number of blocks.
        """
        if num_elements % self.block_size:
            raise ShapeError(
                f"a row of {num_elements} elements does not fit {self.name}: "
                f"it needs a multiple of {self.block_size}"
            )
        return num_elements // self.block_size * self.block_bytes

    def decode(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Decode rows of blocks.

        Args:
            data: u8[..., num_bytes]; the last dimension is a whole number of blocks.

        Returns:
            f32[..., num_elements], newly allocated.

        Raises:
            ShapeError: the last dimension is not a whole number of blocks.
        """
        if data.ndim == 0 or data.shape[-1] % self.block_bytes:
            raise ShapeError(
                f"bytes of shape {data.shape} are not rows of {self.name} blocks "
                f"({self.block_bytes} bytes each)"
            )
        num_elements = data.shape[-1] // self.block_bytes * self.block_size
        out = np.empty((*data.shape[:-1], num_elements), np.float32)
        source = np.ascontiguousarray(data).reshape(-1, self.block_bytes)
        target = out.reshape(-1, self.block_size)
        # Weights of a hostile or damaged file may hold infinities; they decode to what they are.
        with np.errstate(all="ignore"):
            for step in self._steps(len(source)):
                target[step] = self.decode_blocks(source[step])
        return out

    def encode(
        self,
        values: npt.NDArray[np.float32],
        importance: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.uint8]:
        """Encode rows of numbers; without importance the error is at most `max_error`.

        Args:
            values: f32[..., num_elements]; the last dimension is a whole number of blocks.
            importance: f32[num_elements], at least 0: how much the squared error of a column
                counts, against the others of its block (llama.cpp's imatrix). Blocks of zeros
                count evenly. Formats that choose nothing ignore it.

        Returns:
            u8[..., num_bytes], newly allocated.

        Raises:
            UnsupportedError: this format has no encoder.
            ShapeError: the last dimension is not a whole number of blocks.
            NumericsError: a block format was given NaN, infinity or numbers beyond its scale, or
                an importance is negative or not finite.
        """
        if self.encode_blocks is None:
            raise UnsupportedError(f"{self.name} has no encoder; encoders: {_encoders()}")
        source, lead = self._blocks_of(values)
        out = np.empty((len(source), self.block_bytes), np.uint8)
        if importance is not None:
            check_importance(importance, values.shape[-1])
        with np.errstate(all="ignore"):
            for step in self._steps(len(source)):
                self._check_encodable(source[step])
                if importance is None or self.encode_weighted is None:
                    out[step] = self.encode_blocks(source[step])
                else:
                    weights = _relative_weights(importance.reshape(-1, self.block_size))
                    places = np.arange(step.start, step.start + len(out[step])) % len(weights)
                    out[step] = self.encode_weighted(source[step], weights[places])
        return out.reshape(*lead, self.num_bytes(values.shape[-1]))

    def max_error(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Bound the error of `encode` for these numbers, element by element.

        Args:
            values: f32[..., num_elements], finite.

        Returns:
            f32[..., num_elements]: never less than |decode(encode(values)) - values|; infinity
            where a number is beyond the range of the format.

        Raises:
            UnsupportedError: this format has no encoder.
            ShapeError: the last dimension is not a whole number of blocks.
        """
        if self.bound_blocks is None:
            raise UnsupportedError(f"{self.name} has no encoder; encoders: {_encoders()}")
        source, lead = self._blocks_of(values)
        with np.errstate(all="ignore"):
            return self.bound_blocks(source).reshape(*lead, values.shape[-1])

    def _blocks_of(
        self, values: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], tuple[int, ...]]:
        if values.dtype != np.float32 or values.ndim == 0:
            raise ShapeError(f"expected f32 rows, got {values.dtype} of shape {values.shape}")
        self.num_bytes(values.shape[-1])
        blocks = np.ascontiguousarray(values).reshape(-1, self.block_size)
        return blocks, values.shape[:-1]

    def _check_encodable(self, blocks: npt.NDArray[np.float32]) -> None:
        # One NaN or one huge number would spoil the scale of its whole block without a trace.
        if self.block_size == 1:
            return
        largest = float(np.abs(blocks).max(initial=0.0))
        if not largest <= self.encode_limit:
            raise NumericsError(
                f"cannot encode {largest} as {self.name}: numbers must be finite and within "
                f"+-{self.encode_limit:.8g}"
            )

    def _steps(self, num_blocks: int) -> list[slice]:
        step = max(1, _ELEMENTS_PER_STEP // self.block_size)
        return [slice(start, start + step) for start in range(0, num_blocks, step)]


def check_importance(importance: npt.NDArray[np.float32], row_length: int) -> None:
    """Refuse importances that `QuantFormat.encode` cannot take.

    Raises:
        ShapeError: they are not f32[row_length].
        NumericsError: one is negative or not finite.
    """
    if importance.dtype != np.float32 or importance.shape != (row_length,):
        raise ShapeError(
            f"expected importances f32[{row_length}], got {importance.dtype} of shape "
            f"{importance.shape}"
        )
    bad = np.flatnonzero(~(np.isfinite(importance) & (importance >= 0)))
    if bad.size:
        raise NumericsError(
            f"the importance of column {bad[0]} is {importance[bad[0]]}: it must be finite and "
            "at least 0"
        )


def _relative_weights(blocks: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Importances relative to the largest of each block: f32[num_blocks, block_size] in (0, 1]."""
    largest = blocks.max(axis=-1, keepdims=True)
    return np.where(largest > 0, np.maximum(blocks / largest, _LEAST_WEIGHT), np.float32(1))


def format_names() -> tuple[str, ...]:
    """Names of the formats of files that we compute with, sorted.

    Not called `formats`: importing the folder of that name would replace the function.
    """
    return tuple(name for name in _plugins.keys(_PACKAGE) if type_of_name(name) is not None)


def internal_format_names() -> tuple[str, ...]:
    """Names of the formats that exist in memory only, such as the copies of predictors; sorted."""
    return tuple(name for name in _plugins.keys(_PACKAGE) if type_of_name(name) is None)


def get_format(name: str) -> QuantFormat:
    """Return the format of this name, internal ones included.

    Raises:
        UnsupportedError: there is none; the message lists those of files.
    """
    if name not in _plugins.keys(_PACKAGE):
        raise _plugins.unsupported(_WHAT, name, format_names())
    found = _plugins.load(_PACKAGE, name, "FORMAT", what=_WHAT)
    if not isinstance(found, QuantFormat):
        raise TypeError(f"{_PACKAGE}.{name}.FORMAT is a {type(found).__name__}")
    return found


def format_of_ggml_type(ggml_type: int) -> QuantFormat:
    """Return the format with this id in GGUF tensor tables.

    Raises:
        UnsupportedError: the id is unknown, or known and not implemented.
    """
    known = type_of_id(ggml_type)
    if known is None:
        raise UnsupportedError(
            f"tensor type id {ggml_type} is unknown. Supported: {', '.join(format_names())}."
        )
    return get_format(known.name)


def _encoders() -> str:
    return ", ".join(name for name in format_names() if get_format(name).can_encode)
