"""The type of a quantization format, `QuantFormat`, and the look-up of formats.

The formats are the files in ``formats/``, each of which exports ``FORMAT``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer import _plugins
from powerinfer.errors import NumericsError, ShapeError, UnsupportedError
from powerinfer.quant.ggml_types import type_of_name

__all__ = [
    "BlockDecoder",
    "BlockEncoder",
    "QuantFormat",
    "WeightedEncoder",
    "check_importance",
    "format_names",
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

# Temporaries of one step stay near 4 MiB (1 Mi elements in f32), whatever the tensor.
_ELEMENTS_PER_STEP = 1 << 20

# Weights are never 0, so that the scale of a block is always defined.
_LEAST_WEIGHT = np.float32(2.0**-24)


@dataclass(frozen=True)
class QuantFormat:
    """A storage format of numbers: blocks of `block_size` elements in `block_bytes` bytes.

    Attributes:
        name: lower-case name, equal to the file name in ``formats/``.
        ggml_type: id in the tensor table of a GGUF file; None for an internal format.
        decode_blocks: u8[num_blocks, block_bytes] to f32[num_blocks, block_size].
        encode_blocks: the inverse, or None without an encoder.
        bound_blocks: largest |decode(encode(x)) - x| per element, or None without an encoder.
        encode_limit: largest magnitude that the encoder accepts.
        encode_weighted: encoder with minimal weighted squared error, or None if weights have no
            effect.
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
        """True if `encode` and `max_error` are available."""
        return self.encode_blocks is not None

    def num_bytes(self, num_elements: int) -> int:
        """Return the bytes of a row of `num_elements`.

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
        # Weights of a hostile or damaged file may contain infinities, which are kept.
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
            importance: f32[num_elements], at least 0: weight of the squared error of each column
                within its block (llama.cpp's imatrix). In a block of zeros all weights are equal.
                Formats without `encode_weighted` ignore it.

        Returns:
            u8[..., num_bytes], newly allocated.

        Raises:
            UnsupportedError: this format has no encoder.
            ShapeError: the last dimension is not a whole number of blocks.
            NumericsError: values of a block format are not finite or beyond its scale, or an
                importance is negative or not finite.
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
        """Bound the error of `encode` for each element.

        Args:
            values: f32[..., num_elements], finite.

        Returns:
            f32[..., num_elements]: at least |decode(encode(values)) - values|; infinity for
            numbers beyond the range of the format.

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
        # One NaN or huge number would silently spoil the scale of its whole block.
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
    """Check the importances for `QuantFormat.encode`.

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
    """Divide by the largest importance of each block: f32[num_blocks, block_size] in (0, 1]."""
    largest = blocks.max(axis=-1, keepdims=True)
    return np.where(largest > 0, np.maximum(blocks / largest, _LEAST_WEIGHT), np.float32(1))


def format_names() -> tuple[str, ...]:
    """Return the sorted names of the supported formats of files.

    Not called `formats`: importing the folder of that name would replace the function.
    """
    return tuple(name for name in _plugins.keys(_PACKAGE) if type_of_name(name) is not None)


def internal_format_names() -> tuple[str, ...]:
    """Return the sorted names of formats used in memory only, for copies of predictors."""
    return tuple(name for name in _plugins.keys(_PACKAGE) if type_of_name(name) is None)


def get_format(name: str) -> QuantFormat:
    """Return the format of this name, internal ones included.

    Raises:
        UnsupportedError: the name is unknown; lists the formats of files.
    """
    if name not in _plugins.keys(_PACKAGE):
        raise _plugins.unsupported(_WHAT, name, format_names())
    found = _plugins.load(_PACKAGE, name, "FORMAT", what=_WHAT)
    if not isinstance(found, QuantFormat):
        raise TypeError(f"{_PACKAGE}.{name}.FORMAT is a {type(found).__name__}")
    return found


def _encoders() -> str:
    return ", ".join(name for name in format_names() if get_format(name).can_encode)
