"""Layout of weights in the memory of an accelerator, and its size.

A format either keeps its numbers as floats or is packed: codes as bit fields of 32-bit words in
the order of the columns (the first column in the lowest bits), and one f16 scale for 32 columns,
apart from the codes, so that both can be read 16 bytes at a time. The number is
``scale * (code - centre)``. Formats without a packed form here are decoded to f16. Nothing here
needs torch: placing a model needs sizes.
"""

from dataclasses import dataclass

from powerinfer.errors import ShapeError
from powerinfer.quant import get_format

__all__ = [
    "ALIGNMENT",
    "PANEL_BYTES",
    "SCALE_COLUMNS",
    "WIDEST_PIECE",
    "DeviceFormat",
    "aligned",
    "chunk_neurons",
    "device_bytes",
    "device_format",
    "held_bytes",
    "transposed_format",
]

SCALE_COLUMNS = 32
"""Columns that share one scale in every packed format."""

ALIGNMENT = 256
"""Bytes to which arrays are aligned, as CUDA aligns its allocations."""

WIDEST_PIECE = 1 << 15
"""Slots computed at a time of a block for many tokens: several arrays are as wide."""

PANEL_BYTES = 32 << 20
"""Largest panel of rows that is decoded at a time for products with many tokens. A product takes
memory for one: enough rows for the tiles of a product to fill a large GPU."""

_SCALE_BYTES = 2

# Chunks of neurons that are columns of a file's matrix begin at a block boundary of any format.
_CHUNK_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class DeviceFormat:
    """The layout of an encoding on the device.

    Attributes:
        element: ``f32``, ``f16`` or ``bf16``; ``packed`` for codes and scales.
        bits: size of a code, a power of two; 0 for floats.
        centre: the code that means zero.
    """

    element: str
    bits: int = 0
    centre: float = 0.0

    @property
    def is_packed(self) -> bool:
        """True for codes and scales."""
        return self.bits > 0


# Three bits take four: fields must not straddle words. A sign bit is 1 for positive, with
# twice the magnitude as scale.
_FORMATS = {
    "f32": DeviceFormat("f32"),
    "f16": DeviceFormat("f16"),
    "bf16": DeviceFormat("bf16"),
    "q8_0": DeviceFormat("packed", 8, 128.0),
    "q4_0": DeviceFormat("packed", 4, 8.0),
    "lowbit3": DeviceFormat("packed", 4, 3.5),
    "lowbit2": DeviceFormat("packed", 2, 1.5),
    "sign": DeviceFormat("packed", 1, 0.5),
}
_DECODED = DeviceFormat("f16")
_ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


def device_format(format_name: str) -> DeviceFormat:
    """Return the layout of an encoding on the device.

    Raises:
        UnsupportedError: there is no such format.
    """
    known = _FORMATS.get(format_name)
    if known is not None:
        return known
    get_format(format_name)
    return _DECODED


def transposed_format(format_name: str) -> str:
    """Return the format of a transposed matrix.

    Blocks of numbers would lie across the new rows, so that they are decoded.
    """
    is_float = format_name == device_format(format_name).element
    return format_name if is_float else _DECODED.element


def device_bytes(format_name: str, rows: int, columns: int) -> int:
    """Count the bytes of a matrix [rows, columns] on the device that products read.

    Raises:
        ShapeError: the columns are not a whole number of blocks.
        UnsupportedError: there is no such format.
    """
    return rows * sum(_row_parts(format_name, columns))


def held_bytes(format_name: str, rows: int, columns: int) -> int:
    """Count the bytes that a matrix takes of an arena, including gaps for alignment.

    Raises:
        ShapeError: the columns are not a whole number of blocks.
        UnsupportedError: there is no such format.
    """
    return sum(aligned(rows * part) for part in _row_parts(format_name, columns))


def aligned(num_bytes: int) -> int:
    """Round up to the start of the next array."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _row_parts(format_name: str, columns: int) -> tuple[int, int]:
    """Return the bytes of a row's numbers or codes, and of its scales."""
    form = device_format(format_name)
    if not form.is_packed:
        return columns * _ELEMENT_BYTES[form.element], 0
    if columns % SCALE_COLUMNS:
        raise ShapeError(
            f"{columns} columns of {format_name}: packed formats need a multiple of {SCALE_COLUMNS}"
        )
    return columns * form.bits // 8, columns // SCALE_COLUMNS * _SCALE_BYTES


def chunk_neurons(neuron_bytes: int, num_neurons: int, chunk_bytes: int) -> int:
    """Choose the number of cold neurons that a prompt sends at a time.

    Args:
        neuron_bytes: size of the rows of one neuron on the device.
        num_neurons: neurons of the layer.
        chunk_bytes: approximate size of a chunk, which holds at least 256 neurons.
    """
    wanted = chunk_bytes // max(1, neuron_bytes) // _CHUNK_ALIGNMENT
    return min(max(1, wanted) * _CHUNK_ALIGNMENT, num_neurons)
