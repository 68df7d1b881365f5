"""Sizes of a model's weight formats on a GPU, where some of them become F16."""

from collections.abc import Iterator
from dataclasses import dataclass

from powerinfer.models import Model
from powerinfer.ops.backend import Backend, Matrix
from powerinfer.ops.gpu.formats import device_bytes, device_format, transposed_format

__all__ = ["WeightFormat", "weight_formats"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """All placeable matrices of one format.

    Attributes:
        num_decoded: weights that become F16 on the GPU and take more memory there.
    """

    name: str
    num_weights: int
    file_bytes: int
    device_bytes: int
    num_decoded: int = 0

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
        sums = found.setdefault(name, [0, 0, 0, 0])
        for number, value in enumerate(_sizes(model.ops, matrix, is_transposed=is_transposed)):
            sums[number] += value
    formats = (WeightFormat(name, *sums) for name, sums in found.items())
    return tuple(sorted(formats, key=lambda each: (-each.file_bytes, each.name)))


def _matrices(model: Model) -> Iterator[tuple[Matrix, bool]]:
    """Yield each matrix, and whether its columns become rows on the GPU."""
    for layer in model.weights.layers:
        ffn = layer.ffn
        for linear in (*layer.mixer.linears, ffn.gate, ffn.up):
            if linear is not None:
                yield linear.matrix, False
        yield ffn.down.matrix, not ffn.is_down_transposed
        if ffn.predictor is not None:
            if ffn.predictor.fc1 is not None:
                yield ffn.predictor.fc1, False
            for stage in ffn.predictor.stages:
                yield stage.matrix, False
    yield model.weights.output.matrix, False


def _sizes(ops: Backend, matrix: Matrix, *, is_transposed: bool) -> tuple[int, int, int, int]:
    name, (rows, columns) = ops.matrix_format(matrix), ops.matrix_shape(matrix)
    num_weights = rows * columns
    if is_transposed:
        placed, rows, columns = transposed_format(name), columns, rows
    else:
        form = device_format(name)
        placed = name if form.is_packed else form.element
    device = device_bytes(placed, rows, columns)
    return num_weights, ops.matrix_bytes(matrix), device, 0 if placed == name else num_weights
