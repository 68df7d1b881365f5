"""Writing a model in another type: fewer bits per weight, or back to F16 or BF16.

Rows stay rows: only the format of matrices changes. The source is mapped and the file is written in
blocks of rows, so memory use does not depend on the model.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer._replacing import make_folder_of
from powerinfer.convert.quantize.file_types import FileType
from powerinfer.convert.quantize.imatrix import ImportanceMatrix
from powerinfer.convert.quantize.plan import (
    QuantizedTensor,
    QuantizeOptions,
    importance_of,
    plan_tensors,
)
from powerinfer.convert.rewriting import check_target, write_model
from powerinfer.errors import GGUFError, NumericsError
from powerinfer.gguf import GGUFFile, Tensor, keys
from powerinfer.gguf.rewrite import Progress, StoredTensor, copied
from powerinfer.ops.cpu.encode import encode_rows
from powerinfer.ops.cpu.mapped_pages import release_pages
from powerinfer.quant import get_format

__all__ = ["QuantizeReport", "quantize"]

_VERSION = 2
"""Version of the quantized blocks' layout; llama.cpp's only one since 2023."""

# Block scales are F16.
_LARGEST_HALF = 65504.0
# Source bytes encoded at once.
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class QuantizeReport:
    """Result of quantizing.

    Attributes:
        source_bytes: size of the source, all parts.
        elapsed_s: duration of writing, without the flush to disk.
    """

    path: Path
    file_type: FileType
    tensors: tuple[QuantizedTensor, ...]
    source_bytes: int
    num_bytes: int
    elapsed_s: float

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes of the source per second."""
        return self.source_bytes / self.elapsed_s / 1e9 if self.elapsed_s > 0 else 0.0


def quantize(
    file: GGUFFile, path: Path, options: QuantizeOptions, progress: Progress | None = None
) -> QuantizeReport:
    """Write a model to one file of another type, atomically.

    Magic and keys are kept, parts are joined. A quantized tensor is re-encoded only if that makes
    it smaller or plain numbers.

    Args:
        path: file to write (its folder is created); only a file that this function wrote is
            replaced.
        progress: called with bytes of the new file.

    Raises:
        GGUFError: nothing to quantize, `path` is the model or another file that would be lost, it
            cannot be written, or requested formats or importance do not fit the model.
        UnsupportedError: a tensor's format cannot be read, or its new format has no encoder.
        NumericsError: a tensor holds NaN, infinity, or numbers outside its format's range.
    """
    remedy = "remove it, or name another file"
    check_target(file, path, key=keys.QUANTIZED_FROM, writer="quantize", remedy=remedy)
    plan = plan_tensors(file, options)
    encode = partial(_encode, threads=options.threads, kernels=options.kernels)
    stored = [
        copied(tensor)
        if tensor.format == made.format
        else StoredTensor(
            made.name,
            made.shape,
            made.format,
            partial(_chunks, tensor, made, options.imatrix, encode),
        )
        for tensor, made in plan
    ]
    make_folder_of(path, error=GGUFError)
    started = last = time.perf_counter()

    def advance(done: int, total: int) -> None:
        nonlocal last
        last = time.perf_counter()
        if progress is not None:
            progress(done, total)

    write_model(file, path, _changes(file, options), stored, advance)
    return QuantizeReport(
        path,
        options.file_type,
        tuple(made for _, made in plan),
        file.num_bytes,
        path.stat().st_size,
        last - started,
    )


def _changes(file: GGUFFile, options: QuantizeOptions) -> dict[str, object]:
    imatrix = options.imatrix
    found: dict[str, object] = {
        keys.FILE_TYPE: options.file_type.number,
        keys.QUANTIZATION_VERSION: _VERSION,
        keys.QUANTIZED_FROM: file.path.name,
    }
    if imatrix is not None:
        # Keys of llama.cpp's quantizer.
        found["quantize.imatrix.file"] = imatrix.path.name
        found["quantize.imatrix.dataset"] = ", ".join(imatrix.datasets)
        found["quantize.imatrix.entries_count"] = len(imatrix.entries)
        found["quantize.imatrix.chunks_count"] = imatrix.chunk_count
    return found


_Encode = Callable[..., npt.NDArray[np.uint8]]


def _chunks(
    tensor: Tensor, made: QuantizedTensor, imatrix: ImportanceMatrix | None, encode: _Encode
) -> Iterator[npt.NDArray[np.uint8]]:
    """Encode a tensor in blocks of rows."""
    rows, importance = tensor.rows, importance_of(tensor, imatrix)
    step = max(1, _BLOCK_BYTES // max(1, rows.shape[1]))
    # Rows of one matrix share their weights.
    num_matrices = 1 if importance is None else len(importance)
    by_matrix = len(rows) // num_matrices
    for matrix in range(num_matrices):
        weights = None if importance is None else importance[matrix]
        for start in range(matrix * by_matrix, (matrix + 1) * by_matrix, step):
            part = rows[start : min(start + step, (matrix + 1) * by_matrix)]
            yield encode(part, tensor, made, weights, start)
            release_pages(part)


def _encode(
    rows: npt.NDArray[np.uint8],
    tensor: Tensor,
    made: QuantizedTensor,
    importance: npt.NDArray[np.float32] | None,
    first_row: int,
    *,
    threads: int,
    kernels: str | None,
) -> npt.NDArray[np.uint8]:
    """Encode some rows and accumulate the change."""
    try:
        encoded = encode_rows(
            rows,
            tensor.format,
            made.format,
            tensor.shape[-1],
            importance=importance,
            threads=threads,
            kernels=kernels,
        )
    except NumericsError as problem:
        reason = _explained(rows, tensor, made.format, first_row) or str(problem)
        raise NumericsError(f"{tensor.file}: tensor {tensor.name}: {reason}") from None
    made.error.squared_error += encoded.squared_error
    made.error.squared_norm += encoded.squared_sum
    return encoded.data


def _explained(
    rows: npt.NDArray[np.uint8], tensor: Tensor, format_name: str, first_row: int
) -> str | None:
    """Explain why rows cannot be encoded, if their numbers tell."""
    largest = np.abs(get_format(tensor.format).decode(rows)).max(axis=1)
    damaged = np.flatnonzero(~np.isfinite(largest))
    if damaged.size:
        return f"row {first_row + damaged[0]} holds NaN or infinity; the model is damaged"
    row = int(largest.argmax())
    if largest[row] <= _LARGEST_HALF:
        return None
    advice = ": take BF16, which holds it" if format_name == "f16" else ""
    return f"row {first_row + row} holds {largest[row]:.3g}, too large for {format_name}{advice}"
