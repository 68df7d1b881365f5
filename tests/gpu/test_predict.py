"""Predictors on a device, against the numpy reference."""

from typing import Any

import numpy as np
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from powerinfer.ops.gpu.ffn import DevicePredictor, DeviceStage, predict
from powerinfer.ops.gpu.matrix import DeviceMatrix, upload_matrix
from powerinfer.ops.operands import NeuronPredictor, ScoreStage
from powerinfer.ops.reference.ffn import predicted_mask
from powerinfer.ops.reference.matrix import ReferenceMatrix
from powerinfer.quant import get_format
from powerinfer.values import FloatArray

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def tensor(values: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(values)).to(DEVICE)


def array(values: Any) -> FloatArray:
    got: FloatArray = values.cpu().numpy()
    return got


class TestPredictors:
    """Masks equal the reference's, but for scores that rounding alone could move over it."""

    def check(self, names: tuple[str, ...], num_tokens: int, *, rank: int, centred: bool) -> None:
        rng = np.random.default_rng(num_tokens)
        hidden, neurons = 256, 50

        def numbers(*shape: int) -> FloatArray:
            return rng.standard_normal(shape).astype(np.float32)

        def pair(name: str, rows: int, columns: int) -> tuple[ReferenceMatrix, DeviceMatrix]:
            encoded = get_format(name).encode(numbers(rows, columns) / np.float32(16))
            values = get_format(name).decode(encoded)
            matrix = ReferenceMatrix(values, encoded.nbytes, is_binary=name == "sign")
            return matrix, upload_matrix(encoded, name, columns, DEVICE)

        fc1 = pair("f16", rank, hidden) if rank else None
        center = numbers(hidden) / np.float32(4) if centred else None
        stages, placed = [], []
        for name in names:
            matrix, uploaded = pair(name, neurons, 256)
            bias = numbers(neurons) / np.float32(4)
            # Between no two scores that rounding could swap, at this seed.
            stages.append(ScoreStage(matrix, bias, -0.11))
            placed.append(DeviceStage(uploaded, tensor(bias), -0.11))
        x = numbers(num_tokens, hidden)
        predictor = NeuronPredictor(
            None if fc1 is None else fc1[0], center, tuple(stages), native=None
        )
        on_device = DevicePredictor(
            None if fc1 is None else fc1[1],
            None if center is None else tensor(center),
            tuple(placed),
        )
        expected = predicted_mask(x, predictor)
        assert expected.any()
        assert not expected.all()
        got = predict(tensor(x), on_device)
        assert got.dtype == torch.uint8
        np.testing.assert_array_equal(array(got), expected)

    @pytest.mark.parametrize(
        "names", (("f16",), ("q8_0",), ("lowbit2",), ("sign", "lowbit3"), ("sign", "f16"))
    )
    @pytest.mark.parametrize("num_tokens", (1, 3))
    @pytest.mark.parametrize(("rank", "centred"), ((0, False), (0, True), (96, False)))
    def test_kinds(self, names: tuple[str, ...], num_tokens: int, rank: int, centred: bool) -> None:
        self.check(names, num_tokens, rank=rank, centred=centred)

    def test_more_tokens_than_one_launch_takes(self) -> None:
        self.check(("f16", "lowbit2"), 19, rank=0, centred=True)

    def test_scores_that_are_no_numbers_pass(self) -> None:
        encoded = get_format("f16").encode(np.eye(6, 32, dtype=np.float32))
        stage = DeviceStage(upload_matrix(encoded, "f16", 32, DEVICE), None, 0.5)
        x = np.zeros((2, 32), np.float32)
        x[0, 2], x[1, 31] = 1.0, np.nan
        got = array(predict(tensor(x), DevicePredictor(None, None, (stage, stage))))
        np.testing.assert_array_equal(got, [[0, 0, 1, 0, 0, 0], [1] * 6])
