"""Weight matrices on a torch device: made from the encodings of files, written and read by rows.

`powerinfer.ops.gpu.formats` describes the layout. Encoded bytes are sent and unpacked on the
device, some megabytes at a time, so neither side ever holds a second copy of a matrix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from powerinfer.errors import NumericsError, ShapeError
from powerinfer.ops.gpu.formats import SCALE_COLUMNS, device_format, packed_shape
from powerinfer.ops.gpu.kernels.packing import PACKED_AT_ONCE, pack_rows
from powerinfer.ops.gpu.memory import Arena
from powerinfer.quant import get_format
from powerinfer.values import ByteArray, IntArray

__all__ = [
    "DeviceMatrix",
    "can_join",
    "empty_matrix",
    "joined_format",
    "rows_of",
    "upload_matrix",
    "write_rows",
]

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_MAX_HALF = 65504.0
# Encoded bytes, or decoded numbers, in flight at a time. Unpacking them temporarily takes up to 5
# times as much, which a memory budget must leave room for.
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class DeviceMatrix:
    """A weight matrix on a device: of neurons, slots or outputs, one a row.

    Attributes:
        format_name: encoding it was made from, which decides the layout.
        columns: in features, padded to blocks of the encoding.
        values: f32, f16 or bf16[rows, columns]; codes of packed formats, as words
            i32[rows, bits * blocks], the columns padded to a multiple of four blocks.
        scales: f16[rows, n], see `Scaling`; n is 0 for floats.
    """

    format_name: str
    columns: int
    values: Tensor
    scales: Tensor

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.values)

    @property
    def bits(self) -> int:
        """Size of a code; 0 for floats."""
        return device_format(self.format_name).bits

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.values.nbytes) + int(self.scales.nbytes)

    @property
    def row_bytes(self) -> int:
        """Bytes read for one row, even if there are none."""
        parts = self.values, self.scales
        return sum(int(part.shape[1]) * part.element_size() for part in parts)

    @property
    def is_binary(self) -> bool:
        """True if products use only the signs of their input (format `sign`)."""
        return self.format_name == "sign"

    @property
    def device(self) -> torch.device:
        """The torch device."""
        return self.values.device


def empty_matrix(
    format_name: str, rows: int, columns: int, where: Arena | torch.device | str
) -> DeviceMatrix:
    """Allocate a matrix to be filled by `write_rows`: zeros, or the contents of the arena.

    Args:
        columns: numbers in a row; for packed formats a multiple of 32.
        where: an arena, or a torch device or its name for separate memory.

    Raises:
        ShapeError: the columns are not a whole number of blocks.
        UnsupportedError: there is no such format.
    """
    form = device_format(format_name)
    get_format(format_name).num_bytes(columns)
    if form.is_packed:
        dtype, (num_values, num_halves) = torch.int32, packed_shape(form, columns)
    else:
        dtype, num_values, num_halves = _DTYPES[form.element], columns, 0

    def array(size: int, dtype: torch.dtype) -> Tensor:
        if isinstance(where, Arena):
            return where.array((rows, size), dtype)
        return torch.zeros((rows, size), dtype=dtype, device=where)

    values = array(num_values, dtype)
    return DeviceMatrix(format_name, columns, values, array(num_halves, torch.float16))


def upload_matrix(
    encoded: ByteArray, format_name: str, columns: int, device: torch.device | str
) -> DeviceMatrix:
    """Copy a whole encoded matrix, u8[rows, row_bytes], to the device.

    Numbers of a format without a packed form become f16, or if one does not fit, f32. Errors are
    those of `empty_matrix` and `write_rows`.
    """
    slots = np.arange(len(encoded), dtype=np.int32)
    matrix = empty_matrix(format_name, len(encoded), columns, device)
    try:
        write_rows(matrix, slots, encoded)
    except NumericsError:
        wide = empty_matrix("f32", len(encoded), columns, device)
        matrix = rows_of(wide, 0, len(encoded), format_name)
        write_rows(matrix, slots, encoded)
    return matrix


def write_rows(
    matrix: DeviceMatrix, slots: IntArray, encoded: ByteArray, *, is_staged: bool = False
) -> None:
    """Overwrite rows of a matrix.

    Args:
        slots: i32[n], distinct rows to write, on torch's current stream.
        encoded: u8[n, row_bytes] in the encoding `matrix.format_name`.
        is_staged: `encoded` lies in page-locked memory and does not change until the stream has
            read it, which nothing waits for.

    Raises:
        ShapeError: the bytes do not fit the matrix.
        IndexError: a slot is out of range.
        NumericsError: a decoded number does not fit the f16 of `matrix`.
    """
    row_bytes = get_format(matrix.format_name).num_bytes(matrix.columns)
    if encoded.shape != (len(slots), row_bytes):
        raise ShapeError(
            f"rows of shape {encoded.shape} for {len(slots)} slots of {matrix.columns} columns; "
            f"{matrix.format_name} needs ({len(slots)}, {row_bytes})"
        )
    if not len(slots):
        return
    if slots.min() < 0 or slots.max() >= matrix.rows:
        raise IndexError(f"slots must lie within [0, {matrix.rows})")
    whole = _place(slots)
    if is_staged and matrix.format_name in _DTYPES and isinstance(whole, slice):
        # Nothing to unpack: sent straight to its place.
        rows = torch.from_numpy(encoded).view(matrix.values.dtype)
        matrix.values[whole].copy_(rows, non_blocking=True)
        return
    if is_staged and matrix.format_name in PACKED_AT_ONCE and isinstance(whole, slice):
        sent = _sent(encoded, matrix.device, is_staged=True)
        pack_rows(sent, matrix.format_name, matrix.values[whole], matrix.scales[whole])
        return
    step = max(1, _PIECE // max(1, row_bytes, matrix.columns))
    for first in range(0, len(slots), step):
        place = _place(slots[first : first + step])
        place = place.to(matrix.device) if isinstance(place, Tensor) else place
        values, scales = _parts(matrix, encoded[first : first + step], is_staged=is_staged)
        matrix.values[place] = values
        if scales is not None:
            matrix.scales[place] = scales


def can_join(matrices: Sequence[tuple[str, int]]) -> bool:
    """Test whether several matrices may be joined by rows, so that one kernel multiplies them all.

    `matrices` are pairs of format and columns; formats that decode to the same type may be mixed.
    """
    return len({(device_format(name), name == "sign", columns) for name, columns in matrices}) == 1


def joined_format(format_name: str) -> str:
    """Return the format of a matrix with rows of this format and others, see `can_join`."""
    form = device_format(format_name)
    return format_name if form.is_packed else form.element


def rows_of(
    matrix: DeviceMatrix, first: int, last: int, format_name: str | None = None
) -> DeviceMatrix:
    """View rows [first, last); those of a joined matrix may be written in a format of their own."""
    values, scales = matrix.values[first:last], matrix.scales[first:last]
    return DeviceMatrix(format_name or matrix.format_name, matrix.columns, values, scales)


def _place(slots: IntArray) -> slice | Tensor:
    """Return consecutive slots as a slice, others as i64[n] on the host."""
    if (np.diff(slots) == 1).all():
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return torch.from_numpy(slots.astype(np.int64))


def _parts(
    matrix: DeviceMatrix, encoded: ByteArray, *, is_staged: bool
) -> tuple[Tensor, Tensor | None]:
    """Unpack rows on the device, for `values` and `scales`."""
    name, dtype = matrix.format_name, matrix.values.dtype
    if matrix.bits or name in _DTYPES:
        sent = _sent(encoded, matrix.device, is_staged=is_staged)
        return _packed_parts(sent, name) if matrix.bits else (sent.view(dtype), None)
    numbers = get_format(name).decode(encoded)
    if dtype == torch.float16:
        sizes = np.abs(numbers)
        if ((sizes > _MAX_HALF) & np.isfinite(sizes)).any():
            raise NumericsError(
                f"a number of a {name} matrix is beyond {_MAX_HALF:.0f}, the largest f16; keep the "
                "matrix in f32"
            )
        with np.errstate(all="ignore"):
            numbers = numbers.astype(np.float16)
    return torch.from_numpy(numbers).to(matrix.device), None


def _sent(encoded: ByteArray, device: torch.device, *, is_staged: bool) -> Tensor:
    """Send u8[rows, row_bytes], which may be read-only, to the device."""
    if is_staged and device.type == "cuda":
        return torch.from_numpy(encoded).to(device, non_blocking=True)
    staged = torch.empty(encoded.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
    staged.numpy()[:] = encoded
    return staged.to(device)


_SUPERBLOCK = 256
# They do not divide a byte: lower four bits and upper ones lie apart.
_SPLIT_BITS = (5, 6)


def _packed_parts(encoded: Tensor, format_name: str) -> tuple[Tensor, Tensor]:
    """Split u8[rows, row_bytes] of a packed format into words of codes and scales.

    They are i32[rows, bits * blocks] and f16[rows, n], of the padded columns.
    """
    form, rows = device_format(format_name), encoded.shape[0]
    blocks = encoded.reshape(rows, -1, get_format(format_name).block_bytes)
    codes, *halves = _SPLITTERS[format_name](blocks)
    codes = codes.reshape(rows, -1, SCALE_COLUMNS)
    scales = torch.cat([part.reshape(rows, -1) for part in halves], dim=1)
    num_words, num_halves = packed_shape(form, codes.shape[1] * SCALE_COLUMNS)
    codes = functional.pad(codes, (0, 0, 0, num_words // form.bits - codes.shape[1]))
    return _words(codes, form.bits), functional.pad(scales, (0, num_halves - scales.shape[1]))


def _words(codes: Tensor, bits: int) -> Tensor:
    """Pack u8[rows, blocks, 32] into words, see `powerinfer.ops.gpu.formats`."""
    if bits in _SPLIT_BITS:
        return torch.cat([_words(codes & 15, 4), _words(codes >> 4, bits - 4)], dim=1)
    rows, blocks, _ = codes.shape
    fields = codes.reshape(rows, blocks, bits, 8 // bits, 4)
    packed = fields[..., 0, :]
    for place in range(1, 8 // bits):
        packed = packed | fields[..., place, :] << bits * place
    words = packed.contiguous().view(torch.int32)[..., 0]
    return words.transpose(1, 2).reshape(rows, bits * blocks)


def _halves(part: Tensor) -> Tensor:
    """View the last dimension of bytes as f16."""
    return part.contiguous().view(torch.float16)


def _q8_0(blocks: Tensor) -> tuple[Tensor, Tensor]:
    # Flipping the top bit of a signed byte adds 128.
    return blocks[..., 2:] ^ 0x80, _halves(blocks[..., :2])


def _q4_0(blocks: Tensor) -> tuple[Tensor, Tensor]:
    packed = blocks[..., 2:]
    return torch.cat([packed & 15, packed >> 4], dim=-1), _halves(blocks[..., :2])


def _lowbit2(blocks: Tensor) -> tuple[Tensor, Tensor]:
    return _in_order(_low_bits(blocks[..., 16:])), _halves(blocks[..., :16])


def _lowbit3(blocks: Tensor) -> tuple[Tensor, Tensor]:
    high = blocks[..., 80:]
    planes = torch.stack([high >> shift & 1 for shift in range(8)], dim=-2)
    codes = _low_bits(blocks[..., 16:80]) | planes.reshape(*high.shape[:-1], _SUPERBLOCK) << 2
    return _in_order(codes), _halves(blocks[..., :16])


def _sign(blocks: Tensor) -> tuple[Tensor, Tensor]:
    # A set bit means negative in the file and 0 here. A doubled magnitude that overflows gives NaN
    # scores, and with them neurons that pass.
    packed = blocks[..., :32, None]
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    scales = _halves(blocks[..., 32:]) * 2
    return (packed >> shifts & 1) ^ 1, scales.expand(*scales.shape[:-1], _SUPERBLOCK // 32)


def _q4_k(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _nibble_groups(blocks[..., 16:]), _scales_and_minima(blocks), _halves(blocks[..., :4])


def _q5_k(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    high = torch.stack([blocks[..., 16:48] >> group & 1 for group in range(8)], dim=-2)
    codes = _nibble_groups(blocks[..., 48:]) | high << 4
    return codes, _scales_and_minima(blocks), _halves(blocks[..., :4])


def _q6_k(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low = blocks[..., :128].reshape(*blocks.shape[:-1], 2, 64)
    low = torch.cat([low & 15, low >> 4], dim=-1).reshape(*blocks.shape[:-1], 2, 4, 32)
    high = blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 32)
    high = torch.stack([high >> shift & 3 for shift in (0, 2, 4, 6)], dim=-2)
    units = _halves(blocks[..., 208:])
    return low | high << 4, _halves(blocks[..., 192:208]), torch.cat([units, units], dim=-1)


def _nibble_groups(packed: Tensor) -> Tensor:
    """Unpack eight groups of 32 codes, two in the nibbles of the same bytes: u8[..., 8, 32]."""
    pairs = packed.reshape(*packed.shape[:-1], 4, 32)
    return torch.stack([pairs & 15, pairs >> 4], dim=-2).flatten(-3, -2)


def _scales_and_minima(blocks: Tensor) -> Tensor:
    """Pair the bytes of `packed_scales` in ``quant/formats/_blocks.py``, as f16[..., 8]."""
    first, second, third = (blocks[..., start : start + 4] for start in (4, 8, 12))
    scales = torch.cat([first & 63, (third & 15) | first >> 6 << 4], dim=-1)
    minima = torch.cat([second & 63, third >> 4 | second >> 6 << 4], dim=-1)
    return _halves(torch.stack([scales, minima], dim=-1)).squeeze(-1)


def _low_bits(packed: Tensor) -> Tensor:
    """Unpack two-bit codes in the order of places, see ``quant/formats/_lowbit.py``."""
    fields = torch.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], dim=-2)
    return fields.reshape(*packed.shape[:-1], _SUPERBLOCK)


def _in_order(codes: Tensor) -> Tensor:
    """Reorder from places to numbers."""
    grouped = codes.reshape(*codes.shape[:-1], 8, 8, 4).transpose(-3, -2)
    return grouped.reshape(*codes.shape)


_SPLITTERS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "lowbit2": _lowbit2,
    "lowbit3": _lowbit3,
    "sign": _sign,
}
