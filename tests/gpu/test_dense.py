"""Norms, products, transfers on the device, against the numpy reference."""

from typing import Any
from unittest import mock

import numpy as np
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from int8_inputs import rounded_for
from powerinfer.errors import DeviceError, OutOfDeviceMemoryError, ShapeError
from powerinfer.ops.gpu import linear as gpu_linear
from powerinfer.ops.gpu import ops as gpu_ops
from powerinfer.ops.gpu.kernels import norm
from powerinfer.ops.gpu.kernels.blocks import quantized
from powerinfer.ops.gpu.kernels.matvec import input_blocks
from powerinfer.ops.operands import KVType, Linear
from powerinfer.ops.reference.ops import ReferenceMatrix, ReferenceOps
from powerinfer.quant import get_format
from powerinfer.values import ByteArray, FloatArray
from tolerances import assert_close

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Byte offset of the first f16 scale in a block, and numbers that give weights a spread near one.
ENCODED_ONLY = {
    "q4_k": ((0, 0.004), (2, 0.03)),
    "q5_k": ((0, 0.002), (2, 0.03)),
    "q6_k": ((208, 0.0007),),
}


def numbers(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def encoded_rows(format_name: str, rows: int, columns: int) -> ByteArray:
    """Random weights; of formats without an encoder, random codes."""
    known = get_format(format_name)
    row_bytes = known.num_bytes(columns)
    if format_name not in ENCODED_ONLY:
        values = numbers(rows, columns, seed=rows)
        return np.ascontiguousarray(known.encode(values)).view(np.uint8).reshape(rows, row_bytes)
    blocks = np.random.default_rng(rows).integers(
        0, 256, (rows * row_bytes // known.block_bytes, known.block_bytes), np.uint8
    )
    for offset, scale in ENCODED_ONLY[format_name]:
        blocks[:, offset : offset + 2] = np.array([scale], "<f2").view(np.uint8)
    return blocks.reshape(rows, row_bytes)


class DenseCase:
    def setup_method(self) -> None:
        self.gpu = gpu_ops.TorchGPU(DEVICE)
        self.reference = ReferenceOps()

    def layer(self, format_name: str, rows: int, columns: int, *, has_bias: bool) -> Any:
        """The same product for the device and for the reference."""
        encoded = encoded_rows(format_name, rows, columns)
        matrix = self.gpu.upload_matrix(encoded, format_name, columns)
        values = get_format(format_name).decode(encoded).reshape(rows, columns)
        original = ReferenceMatrix(values, encoded.nbytes, format_name == "sign")
        if not has_bias:
            return Linear(matrix), Linear(original)
        bias = numbers(rows, seed=7)
        return Linear(matrix, self.gpu.to_device(bias)), Linear(original, bias)


class TestNorms(DenseCase):
    @pytest.mark.parametrize(
        ("tokens", "columns"), ((1, 1), (1, 288), (3, 1000), (20, 4096), (1, 8192))
    )
    def test_rms_norm(self, tokens: int, columns: int) -> None:
        x, weight = numbers(tokens, columns) * 5 + 1, numbers(columns, seed=1)
        got = self.gpu.rms_norm(self.gpu.to_device(x), self.gpu.to_device(weight), 1e-5)
        expected = self.reference.rms_norm(x, weight, 1e-5)
        assert_close(self.gpu.to_host(got), expected, "one operation, float")

    @pytest.mark.parametrize(("tokens", "columns"), ((1, 2), (2, 100), (9, 2048), (1, 8192)))
    @pytest.mark.parametrize("has_bias", (False, True))
    def test_layer_norm(self, tokens: int, columns: int, has_bias: bool) -> None:
        x, weight = numbers(tokens, columns) * 3 + 10, numbers(columns, seed=1)
        bias = numbers(columns, seed=2) if has_bias else None
        shift = None if bias is None else self.gpu.to_device(bias)
        got = self.gpu.layer_norm(self.gpu.to_device(x), self.gpu.to_device(weight), shift, 1e-5)
        expected = self.reference.layer_norm(x, weight, bias, 1e-5)
        assert_close(self.gpu.to_host(got), expected, "one operation, float")

    def test_rows_of_a_wider_tensor(self) -> None:
        x, weight = numbers(3, 100), numbers(40, seed=1)
        part = self.gpu.to_device(x)[:, 20:60]
        got = self.gpu.rms_norm(part, self.gpu.to_device(weight), 1e-6)
        expected = self.reference.rms_norm(x[:, 20:60], weight, 1e-6)
        assert_close(self.gpu.to_host(got), expected, "one operation, float")

    def test_nan_stays(self) -> None:
        x = numbers(2, 64)
        x[1, 5] = np.nan
        got = self.gpu.to_host(
            self.gpu.rms_norm(self.gpu.to_device(x), self.gpu.to_device(numbers(64)), 1e-5)
        )
        assert np.isfinite(got[0]).all()
        assert np.isnan(got[1]).all()


class TestRoundedNorms(DenseCase):
    """With packed weights, norms leave the int8 blocks that the next product multiplies."""

    @pytest.mark.parametrize("columns", [32, 96, 160, 576, 4544])
    @pytest.mark.parametrize("tokens", [1, 3, 8])
    def test_blocks_are_those_of_the_result(self, tokens: int, columns: int) -> None:
        x = numbers(tokens, columns)
        x[-1, 5] = np.nan if tokens == 3 else x[-1, 5]
        weight = self.gpu.to_device(numbers(columns, seed=1))
        for normed in (
            norm.rms_norm(self.gpu.to_device(x), weight, 1e-5, is_rounded=True),
            norm.layer_norm(self.gpu.to_device(x), weight, weight, 1e-5, is_rounded=True),
        ):
            left = quantized(normed)
            made = quantized(normed.clone())
            assert left is quantized(normed), "made a second time"
            assert torch.equal(left, made)

    def test_blocks_of_a_changed_result_are_made_again(self) -> None:
        x, weight = self.gpu.to_device(numbers(2, 64)), self.gpu.to_device(numbers(64))
        normed = norm.rms_norm(x, weight, 1e-5, is_rounded=True)
        self.gpu.add(normed, x)
        assert torch.equal(quantized(normed), quantized(normed.clone()))

    def test_only_with_packed_matrices(self) -> None:
        x, weight = self.gpu.to_device(numbers(1, 64)), self.gpu.to_device(numbers(64))
        for has_packed in (False, True):
            self.gpu.has_packed = has_packed
            normed = self.gpu.rms_norm(x, weight, 1e-5)
            assert (quantized(normed) is quantized(normed)) == has_packed


class TestLinear(DenseCase):
    def test_formats_and_sizes(self) -> None:
        for format_name in ("f32", "f16", "bf16", "q8_0", "q4_0", "sign", *ENCODED_ONLY, "mxfp4"):
            columns = 256 if get_format(format_name).block_size == 256 else 96
            for tokens in (1, 8, 40):
                layer, original = self.layer(format_name, 21, columns, has_bias=tokens != 8)
                x = numbers(tokens, columns, seed=tokens)
                (got,) = self.gpu.linear(self.gpu.to_device(x), [layer])
                seen = rounded_for(format_name, x) if tokens <= 8 else x
                (expected,) = self.reference.linear(seen, [original])
                is_exact = tokens <= 8 or format_name == "f32"
                # Formats that are decoded to f16 lose what does not fit.
                is_exact &= format_name not in ENCODED_ONLY
                element = "bf16" if format_name == "bf16" else "f16"
                row = "float" if is_exact else element
                assert_close(self.gpu.to_host(got), expected, f"one operation, {row}")

    def test_inputs_are_rounded_once_for_all_packed_matrices(self) -> None:
        names = ("q8_0", "f16", "q4_0", "sign")
        layers, originals = zip(
            *(self.layer(name, 5, 256, has_bias=False) for name in names), strict=True
        )
        x = numbers(3, 256)
        made = mock.Mock(wraps=input_blocks)
        with mock.patch.object(gpu_linear, "input_blocks", made):
            found = self.gpu.linear(self.gpu.to_device(x), layers)
        assert made.call_count == 1
        for name, got, original in zip(names, found, originals, strict=True):
            (expected,) = self.reference.linear(rounded_for(name, x), [original])
            assert_close(self.gpu.to_host(got), expected, "one operation, float")

    def test_packed_matrix_in_pieces(self) -> None:
        layer, original = self.layer("q8_0", 50, 64, has_bias=True)
        x = numbers(10, 64)
        with mock.patch.object(gpu_linear, "PANEL_BYTES", 2 * 64 * 7):
            (got,) = self.gpu.linear(self.gpu.to_device(x), [layer])
        (expected,) = self.reference.linear(x, [original])
        assert_close(self.gpu.to_host(got), expected, "one operation, f16")

    def test_bf16_without_wide_results(self) -> None:
        layer, original = self.layer("bf16", 50, 64, has_bias=True)
        x = numbers(10, 64)
        with (
            mock.patch.object(gpu_linear, "_HAS_WIDE_OUTPUT", False),
            mock.patch.object(gpu_linear, "PANEL_BYTES", 4 * 64 * 7),
        ):
            (got,) = self.gpu.linear(self.gpu.to_device(x), [layer])
        (expected,) = self.reference.linear(x, [original])
        assert_close(self.gpu.to_host(got), expected, "one operation, float")

    def test_rows_of_any_size(self) -> None:
        for name in ("f16", "bf16"):
            layer, original = self.layer(name, 20, 64, has_bias=False)
            sizes = np.float32(10) ** np.arange(-20, 28, 4)[:, None].astype(np.float32)
            x = numbers(12, 64) * sizes
            x[3] = 0
            (got,) = self.gpu.linear(self.gpu.to_device(x), [layer])
            (expected,) = self.reference.linear(x, [original])
            for row, wanted in zip(self.gpu.to_host(got), expected, strict=True):
                assert_close(row, wanted, f"one operation, {name}")

    def test_wrong_width(self) -> None:
        layer, _ = self.layer("f16", 20, 64, has_bias=False)
        for tokens in (1, 9):
            with pytest.raises(ShapeError):
                self.gpu.linear(self.gpu.to_device(numbers(tokens, 65)), [layer])


class TestTransfers(DenseCase):
    def test_there_and_back(self) -> None:
        x = numbers(5, 6, 7)
        for array in (x, x.transpose(2, 0, 1), x[:0], np.arange(5, dtype=np.int32)):
            sent = self.gpu.to_device(array)
            back = self.gpu.to_host(sent)
            np.testing.assert_array_equal(back, array)
            assert back.dtype == array.dtype

    def test_result_is_the_callers_own(self) -> None:
        x = numbers(2, 3)
        sent = self.gpu.to_device(x)
        before = self.gpu.to_host(sent)
        self.gpu.add(sent, sent)
        np.testing.assert_array_equal(before, x)
        np.testing.assert_array_equal(self.gpu.to_host(sent), 2 * x)

    def test_take_rows(self) -> None:
        x = numbers(6, 10)
        rows = np.array([5, 0, 0, 3], np.int32)
        got = self.gpu.take_rows(self.gpu.to_device(x), rows)
        np.testing.assert_array_equal(self.gpu.to_host(got), x[rows])

    def test_pinned_memory_has_a_numpy_view(self) -> None:
        tensor = self.gpu.pinned((3, 4), torch.int32)
        tensor.numpy()[:] = 7
        assert int(tensor.sum()) == 84
        assert tensor.is_pinned() == self.gpu.is_cuda

    def test_unknown_device(self) -> None:
        for name in ("cuda:99", "abacus"):
            with pytest.raises(DeviceError, match=f"no device {name}"):
                gpu_ops.TorchGPU(name)

    def test_exhausted_memory_has_an_error_of_its_own(self) -> None:
        full = torch.cuda.OutOfMemoryError("CUDA out of memory")
        encoded = encoded_rows("f16", 4, 8)
        with (
            mock.patch.object(gpu_ops, "upload_matrix", side_effect=full),
            pytest.raises(OutOfDeviceMemoryError, match="vram_budget"),
        ):
            self.gpu.upload_matrix(encoded, "f16", 8)
        empty = torch.empty

        def exhausted(*sizes: Any, **options: Any) -> Any:
            if options.get("device") != "meta":
                raise full
            return empty(*sizes, **options)

        with (
            mock.patch.object(torch, "empty", exhausted),
            pytest.raises(OutOfDeviceMemoryError, match="KV cache"),
        ):
            self.gpu.new_kv_layers(1, 4, 4, 1, 8, KVType.F16)
