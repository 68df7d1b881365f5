"""Layout of weights in the memory of an accelerator, and its size.

A format either keeps its numbers as floats or is packed: codes as bit fields of 32-bit words, and
scales for blocks of 32 columns (`Scaling`). Formats without a packed form here are decoded to f16.
Nothing here needs torch: placing a model needs sizes.

A block's codes of B bits are B words. Column 4 q + j of a block (q < 8, j < 4) is the field at bit
8 j + B (q % (8 / B)) of word q / (8 / B): shifted and masked, a word holds four codes in its four
bytes, in the order in which int8 inputs lie in memory. A row holds the first words of all its
blocks, then their second words, and so on, so that a thread reads those of four blocks at once.
Hence rows have a multiple of four blocks; those that pad them are zero. Codes of 5 and 6 bits are
their lower four and, after these, their upper ones, each in this order.
"""

from dataclasses import dataclass
from enum import StrEnum

from powerinfer.errors import ShapeError
from powerinfer.quant import get_format

__all__ = [
    "ALIGNMENT",
    "PANEL_BYTES",
    "SCALE_COLUMNS",
    "WIDEST_PIECE",
    "DeviceFormat",
    "Scaling",
    "aligned",
    "chunk_neurons",
    "device_bytes",
    "device_format",
    "held_bytes",
    "num_blocks",
    "packed_shape",
    "transposed_format",
]

SCALE_COLUMNS = 32
"""Columns of a block, which share one scale in every packed format."""

ALIGNMENT = 256
"""Bytes to which arrays are aligned, as CUDA aligns its allocations."""

WIDEST_PIECE = 1 << 15
"""Slots computed at a time of a block for many tokens: several arrays are as wide."""

PANEL_BYTES = 32 << 20
"""Largest panel of rows that is decoded at a time for products with many tokens. A product takes
memory for one: enough rows for the tiles of a product to fill a large GPU."""

# Chunks of neurons that are columns of a file's matrix begin at a block boundary of any format.
_CHUNK_ALIGNMENT = 256


class Scaling(StrEnum):
    """How blocks are scaled, and what the f16 array of a row holds.

    PLAIN: scale * (code - centre); an f16 for each block.
    MINIMA, as in Q4_K and Q5_K: d * scale * code - dmin * minimum; two bytes for each block, its
    scale and its minimum, and after those of all blocks d and dmin for each eight.
    SIXTEENS, as in Q6_K: d * scale * (code - centre), with a scale for each 16 columns; two signed
    bytes for each block, and after those of all blocks twice d for each eight.
    """

    PLAIN = "plain"
    MINIMA = "minima"
    SIXTEENS = "sixteens"


@dataclass(frozen=True, slots=True)
class DeviceFormat:
    """The layout of an encoding on the device.

    Attributes:
        element: ``f32``, ``f16`` or ``bf16``; ``packed`` for codes and scales.
        bits: size of a code; 0 for floats.
        centre: the code that means zero, unless blocks have minima.
    """

    element: str
    bits: int = 0
    centre: float = 0.0
    scaling: Scaling = Scaling.PLAIN

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
    "q4_k": DeviceFormat("packed", 4, 0.0, Scaling.MINIMA),
    "q5_k": DeviceFormat("packed", 5, 0.0, Scaling.MINIMA),
    "q6_k": DeviceFormat("packed", 6, 32.0, Scaling.SIXTEENS),
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
    if format_name not in _FORMATS:
        get_format(format_name)
    return _FORMATS.get(format_name, _DECODED)


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
    """
    return rows * sum(_row_parts(format_name, columns))


def held_bytes(format_name: str, rows: int, columns: int) -> int:
    """Count the bytes that a matrix takes of an arena, including gaps for alignment."""
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
    words, halves = packed_shape(form, columns)
    return words * 4, halves * 2


def num_blocks(columns: int) -> int:
    """Count the blocks of a packed row of these columns, including those that pad it."""
    return 4 * -(-columns // (4 * SCALE_COLUMNS))


def packed_shape(form: DeviceFormat, columns: int) -> tuple[int, int]:
    """Return the words of codes and the f16 of a packed row; the latter a multiple of four."""
    blocks = num_blocks(columns)
    units = 0 if form.scaling is Scaling.PLAIN else blocks // 4
    return blocks * form.bits, blocks + -(-units // 4) * 4


def chunk_neurons(neuron_bytes: int, num_neurons: int, chunk_bytes: int) -> int:
    """Choose the number of cold neurons that a prompt sends at a time, of `neuron_bytes` each.

    They take about `chunk_bytes`; at least they are 256, or all of the layer.
    """
    wanted = chunk_bytes // max(1, neuron_bytes) // _CHUNK_ALIGNMENT
    return min(max(1, wanted) * _CHUNK_ALIGNMENT, num_neurons)
