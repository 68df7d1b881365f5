"""Sizes of a model's weight formats on a GPU, where some of them become F16."""

from collections.abc import Iterator
from dataclasses import dataclass

from powerinfer.models import Model
from powerinfer.ops.backend import Backend, Matrix
from powerinfer.ops.gpu.formats import device_bytes, transposed_format

__all__ = ["WeightFormat", "grown_formats", "weight_formats"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """All placeable matrices of one format."""

    name: str
    num_weights: int
    file_bytes: int
    device_bytes: int

    @property
    def file_bytes_per_weight(self) -> float:
        """Bytes per weight in the file."""
        return self.file_bytes / self.num_weights

    @property
    def device_bytes_per_weight(self) -> float:
        """Bytes per weight on the GPU."""
        return self.device_bytes / self.num_weights

    @property
    def growth(self) -> float:
        """Size on the GPU relative to the file."""
        return self.device_bytes / self.file_bytes


def weight_formats(model: Model) -> tuple[WeightFormat, ...]:
    """Formats of attention, predictors, neurons and output head, largest first."""
    found: dict[str, list[int]] = {}
    for matrix, is_transposed in _matrices(model):
        name = model.ops.matrix_format(matrix)
        sums = found.setdefault(name, [0, 0, 0])
        for number, value in enumerate(_sizes(model.ops, matrix, is_transposed=is_transposed)):
            sums[number] += value
    formats = (WeightFormat(name, *sums) for name, sums in found.items())
    return tuple(sorted(formats, key=lambda each: (-each.file_bytes, each.name)))


def grown_formats(formats: tuple[WeightFormat, ...]) -> tuple[WeightFormat, ...]:
    """Formats without a packed form on the GPU, which take more memory there."""
    return tuple(each for each in formats if each.growth > _SAME)


# Packed formats keep their size on the GPU: scales are stored apart and rows are not padded.
_SAME = 1.05


def _matrices(model: Model) -> Iterator[tuple[Matrix, bool]]:
    """Yield each matrix, and whether its columns become rows on the GPU."""
    for layer in model.weights.layers:
        ffn = layer.ffn
        for linear in (*layer.qkv, layer.attn_output, ffn.gate, ffn.up):
            if linear is not None:
                yield linear.matrix, False
        yield ffn.down.matrix, not ffn.is_down_transposed
        if ffn.predictor is not None:
            if ffn.predictor.fc1 is not None:
                yield ffn.predictor.fc1, False
            for stage in ffn.predictor.stages:
                yield stage.matrix, False
    yield model.weights.output.matrix, False


def _sizes(ops: Backend, matrix: Matrix, *, is_transposed: bool) -> tuple[int, int, int]:
    name, (rows, columns) = ops.matrix_format(matrix), ops.matrix_shape(matrix)
    if is_transposed:
        device = device_bytes(transposed_format(name), columns, rows)
    else:
        device = device_bytes(name, rows, columns)
    return rows * columns, ops.matrix_bytes(matrix), device
