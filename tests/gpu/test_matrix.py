"""Weight matrices on the device and their products with few tokens, against the numpy formats."""

from typing import Any
from unittest import mock

import numpy as np
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from int8_inputs import rounded_for
from powerinfer.errors import NumericsError, ShapeError, UnsupportedError
from powerinfer.ops.gpu import matrix as gpu_matrix
from powerinfer.ops.gpu.formats import device_bytes
from powerinfer.ops.gpu.kernels import matvec as kernels
from powerinfer.ops.gpu.kernels.matvec import matvec
from powerinfer.ops.gpu.kernels.prompts import decode_rows, decoded
from powerinfer.ops.gpu.matrix import (
    DeviceMatrix,
    can_join,
    empty_matrix,
    joined_format,
    rows_of,
    upload_matrix,
    write_rows,
)
from powerinfer.ops.operands import Linear
from powerinfer.ops.reference.matrix import ReferenceMatrix, product
from powerinfer.quant import get_format
from powerinfer.values import ByteArray, FloatArray
from tolerances import assert_close

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ENCODED = (
    *("f32", "f16", "bf16", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k"),
    *("lowbit2", "lowbit3", "sign"),
)


def numbers(rng: np.random.Generator, *shape: int) -> FloatArray:
    return rng.standard_normal(shape).astype(np.float32)


def tensor(values: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(values)).to(DEVICE)


def array(values: Any) -> FloatArray:
    got: FloatArray = values.float().cpu().numpy()
    return got


def encoded(rng: np.random.Generator, name: str, rows: int, columns: int) -> ByteArray:
    """Rows in a format; in a file they are read-only."""
    found: ByteArray = get_format(name).encode(numbers(rng, rows, columns))
    found.flags.writeable = False
    return found


def reference(name: str, rows: ByteArray) -> ReferenceMatrix:
    return ReferenceMatrix(get_format(name).decode(rows), rows.nbytes, is_binary=name == "sign")


class TestUploads:
    """What arrives is what the file says."""

    def assert_holds(self, matrix: DeviceMatrix, rows: ByteArray) -> None:
        expected = get_format(matrix.format_name).decode(rows)
        got = array(decoded(matrix))
        # Packed formats are decoded to f16: half a unit of 11 bits.
        np.testing.assert_allclose(got, expected, rtol=2.0**-11 if matrix.bits else 0, atol=1e-7)

    def test_every_encoding(self) -> None:
        rng = np.random.default_rng(1)
        for name in ENCODED:
            rows = encoded(rng, name, 5, 512)
            matrix = upload_matrix(rows, name, 512, DEVICE)
            self.assert_holds(matrix, rows)
            assert matrix.nbytes == device_bytes(name, 5, 512)
            assert matrix.row_bytes * 5 == matrix.nbytes

    def test_formats_without_a_packed_form_become_f16(self) -> None:
        form = get_format("q4_1")
        scales = np.array([0.5, -1.0], np.float16).view(np.uint8)
        rows = np.tile(np.concatenate([scales, np.arange(16, dtype=np.uint8)]), (3, 2))
        matrix = upload_matrix(rows, "q4_1", 64, DEVICE)
        assert matrix.values.dtype == torch.float16
        assert matrix.nbytes == device_bytes("q4_1", 3, 64)
        np.testing.assert_array_equal(array(matrix.values), form.decode(rows))

    def test_numbers_beyond_f16_make_the_matrix_f32(self) -> None:
        scales = np.array([60000, 60000], np.float16).view(np.uint8)
        rows = np.tile(np.concatenate([scales, np.arange(16, dtype=np.uint8)]), (3, 2))
        matrix = upload_matrix(rows, "q4_1", 64, DEVICE)
        np.testing.assert_array_equal(array(matrix.values), get_format("q4_1").decode(rows))
        narrow = empty_matrix("q4_1", 3, 64, DEVICE)
        with pytest.raises(NumericsError, match="65504"):
            write_rows(narrow, np.arange(3, dtype=np.int32), rows)

    def test_mxfp4_becomes_f16_or_else_f32(self) -> None:
        for exponent, dtype in ((120, torch.float16), (150, torch.float32), (3, torch.float16)):
            block = np.concatenate([[exponent], np.arange(16) * 17]).astype(np.uint8)
            rows = np.tile(block, (3, 2))
            matrix = upload_matrix(rows, "mxfp4", 64, DEVICE)
            assert matrix.values.dtype == dtype
            expected = get_format("mxfp4").decode(rows)
            np.testing.assert_allclose(array(matrix.values), expected, rtol=0, atol=2.0**-25)

    def test_rows_go_to_their_slots_in_pieces(self) -> None:
        rng = np.random.default_rng(2)
        slots = np.array([6, 0, 3, 4], np.int32)
        for name in ("f16", "q4_0", "q5_k", "lowbit2"):
            with mock.patch.object(gpu_matrix, "_PIECE", 700):
                rows = encoded(rng, name, 7, 256)
                matrix = upload_matrix(rows, name, 256, DEVICE)
                changed = rows.copy()
                changed[slots] = encoded(rng, name, 4, 256)
                write_rows(matrix, slots, changed[slots])
                self.assert_holds(matrix, changed)

    def test_staged_rows_go_to_any_slots(self) -> None:
        rng = np.random.default_rng(7)
        for name in ("f32", "bf16", "q8_0"):
            for slots in ([2, 3, 4], [4, 0, 3], [5], []):
                matrix = upload_matrix(encoded(rng, name, 6, 64), name, 64, DEVICE)
                before = array(decoded(matrix)).copy()
                chosen = np.array(slots, np.int32)
                rows = get_format(name).encode(numbers(rng, len(slots), 64))
                room = torch.empty(rows.shape, dtype=torch.uint8, pin_memory=DEVICE.type == "cuda")
                room.numpy()[...] = rows
                write_rows(matrix, chosen, room.numpy(), is_staged=True)
                before[chosen] = get_format(name).decode(rows)
                np.testing.assert_allclose(array(decoded(matrix)), before, rtol=2.0**-11, atol=1e-7)

    def test_rows_packed_at_once_have_the_same_bits(self) -> None:
        rng = np.random.default_rng(8)
        for name, columns in (("q8_0", 96), ("q4_0", 160), ("q4_k", 768), ("q4_k", 2048)):
            rows = rng.integers(0, 256, (70, get_format(name).num_bytes(columns)), np.uint8)
            expected = upload_matrix(rows, name, columns, DEVICE)
            matrix = empty_matrix(name, 72, columns, DEVICE)
            # The memory of chunks holds others before.
            for part in (matrix.values, matrix.scales):
                assert part is not None
                part.fill_(7)
            room = torch.empty(rows.shape, dtype=torch.uint8, pin_memory=DEVICE.type == "cuda")
            room.numpy()[...] = rows
            slots = np.arange(1, 71, dtype=np.int32)
            write_rows(matrix, slots, room.numpy(), is_staged=True)
            for part, wanted in (
                (matrix.values, expected.values),
                (matrix.scales, expected.scales),
            ):
                assert part is not None
                assert wanted is not None
                bits = torch.int32 if part.dtype == torch.int32 else torch.int16
                assert torch.equal(part[1:71].view(bits), wanted.view(bits))
                assert (part[[0, 71]] == 7).all()

    def test_smallest_and_largest_scales_of_k_quants(self) -> None:
        rng = np.random.default_rng(9)
        for name, offsets in (("q4_k", (0, 2)), ("q5_k", (0, 2)), ("q6_k", (208,))):
            form = get_format(name)
            rows = rng.integers(0, 256, (4, 2 * form.block_bytes), np.uint8)
            halves = np.array([6e-8, -3e-5, 8.0, -8.0], np.float16).view(np.uint8).reshape(4, 2)
            for offset in offsets:
                for start in (offset, offset + form.block_bytes):
                    rows[:, start : start + 2] = halves
            matrix = upload_matrix(rows, name, 512, DEVICE)
            self.assert_holds(matrix, rows)
            x = rounded_for(name, numbers(rng, 2, 512))
            expected = x @ form.decode(rows).T
            got = array(matvec(tensor(x), matrix))
            for row in range(4):
                assert_close(got[:, row], expected[:, row], "one operation, float")

    def test_rows_of_several_matrices_lie_in_one(self) -> None:
        rng = np.random.default_rng(3)
        scales = np.array([0.5, -1.0], np.float16).view(np.uint8)
        decoded_ones = np.tile(np.concatenate([scales, np.arange(16, dtype=np.uint8)]), (3, 2))
        for name in ("bf16", "q8_0", "q4_1"):
            second = decoded_ones if name == "q4_1" else encoded(rng, name, 3, 64)
            other = "f16" if name == "q4_1" else name
            parts = ((other, encoded(rng, other, 2, 64)), (name, second))
            assert can_join([(form, 64) for form, _ in parts])
            joined = empty_matrix(joined_format(name), 5, 64, DEVICE)
            for (form, rows), start in zip(parts, (0, 2), strict=True):
                part = rows_of(joined, start, start + len(rows), form)
                write_rows(part, np.arange(len(rows), dtype=np.int32), rows)
                self.assert_holds(part, rows)
            assert joined.format_name == other

    def test_what_lies_otherwise_does_not_join(self) -> None:
        assert not can_join([("q4_0", 64), ("f16", 64)])
        assert not can_join([("q4_0", 64), ("lowbit3", 64)])
        assert not can_join([("q4_0", 256), ("q4_k", 256)])
        assert not can_join([("f16", 64), ("f16", 96)])

    def test_what_does_not_fit_is_refused(self) -> None:
        rng = np.random.default_rng(4)
        rows = encoded(rng, "q8_0", 2, 64)
        matrix = upload_matrix(rows, "q8_0", 64, DEVICE)
        with pytest.raises(ShapeError):
            upload_matrix(rows, "q8_0", 96, DEVICE)
        with pytest.raises(ShapeError):
            write_rows(matrix, np.array([0], np.int32), rows)
        with pytest.raises(IndexError):
            write_rows(matrix, np.array([0, 2], np.int32), rows)
        with pytest.raises(ShapeError):
            empty_matrix("q8_0", 2, 65, DEVICE)
        with pytest.raises(UnsupportedError):
            empty_matrix("q9_9", 2, 64, DEVICE)


class TestPanels:
    """Rows decoded for products with many tokens."""

    @pytest.mark.parametrize(
        "name", ("q8_0", "q4_0", "q4_k", "q5_k", "q6_k", "lowbit2", "lowbit3", "sign")
    )
    def test_any_rows_are_the_numbers_rounded_once(self, name: str) -> None:
        # More columns than a block of the kernel.
        rows = encoded(np.random.default_rng(6), name, 70, 1280)
        matrix = upload_matrix(rows, name, 1280, DEVICE)
        with np.errstate(over="ignore"):
            expected = get_format(name).decode(rows).astype(np.float16)
        for first, count in ((0, 70), (1, 1), (3, 66)):
            memory = torch.full((count + 1, 1280), 7.0, dtype=torch.float16, device=DEVICE)
            decode_rows(matrix, first, memory[:count])
            got = memory.cpu().numpy()
            np.testing.assert_array_equal(got[:count], expected[first : first + count])
            assert (got[count] == 7.0).all()


class TestProducts:
    """Of up to 8 tokens."""

    def check(
        self, name: str, sizes: tuple[int, int, int], *, x_columns: int | None = None, seed: int = 0
    ) -> None:
        num_tokens, num_rows, columns = sizes
        rng = np.random.default_rng(seed)
        rows = encoded(rng, name, num_rows, columns)
        matrix = upload_matrix(rows, name, columns, DEVICE)
        x = np.zeros((num_tokens, columns), np.float32)
        length = columns if x_columns is None else x_columns
        x[:, :length] = numbers(rng, num_tokens, length)
        expected = product(rounded_for(name, x), Linear(reference(name, rows)))
        got = matvec(tensor(x[:, :length]), matrix)
        assert_close(array(got), expected, "one operation, float")
        assert torch.equal(got, matvec(tensor(x[:, :length]), matrix))

    @pytest.mark.parametrize("name", ENCODED)
    @pytest.mark.parametrize("num_tokens", (1, 2, 3, 8))
    def test_every_encoding_and_number_of_tokens(self, name: str, num_tokens: int) -> None:
        self.check(name, (num_tokens, 7, 512), seed=num_tokens)

    def test_columns_that_fill_no_block(self) -> None:
        for name, columns in (("f16", 1), ("f32", 33), ("bf16", 1100), ("q8_0", 1056)):
            for num_tokens in (1, 5):
                self.check(name, (num_tokens, 3, columns))
        self.check("q4_0", (1, 2, 2080))
        for name in ("q4_k", "q5_k", "q6_k"):
            self.check(name, (1, 3, 768))
            self.check(name, (2, 2, 4352))

    @pytest.mark.parametrize("name", ("lowbit2", "lowbit3", "sign"))
    def test_inputs_shorter_than_padded_copies(self, name: str) -> None:
        self.check(name, (2, 5, 512), x_columns=300)

    def test_tiles_of_several_rows(self) -> None:
        # Which large matrices have, whatever makes them large.
        with mock.patch.object(kernels, "_WANTED_PROGRAMS", 2):
            for num_rows in (5, 13, 18):
                for name in ("f16", "q4_0"):
                    self.check(name, (1, num_rows, 64))
            self.check("q8_0", (4, 13, 1056))

    def test_bias_center_and_clipping(self) -> None:
        rng = np.random.default_rng(5)
        x, center = numbers(rng, 3, 256), numbers(rng, 256)
        for name in ("f16", "sign"):
            rows, bias = encoded(rng, name, 6, 256), numbers(rng, 6)
            matrix = upload_matrix(rows, name, 256, DEVICE)
            expected = product(x - center, Linear(reference(name, rows), bias))
            got = matvec(tensor(x), matrix, tensor(bias), is_relu=True, center=tensor(center))
            assert_close(array(got), np.maximum(expected, 0), "one operation, float")

    def test_damage_reaches_the_result(self) -> None:
        rows = get_format("f16").encode(np.eye(4, 32, dtype=np.float32))
        matrix = upload_matrix(rows, "f16", 32, DEVICE)
        x = np.ones((2, 32), np.float32)
        x[1, 30] = np.nan
        got = array(matvec(tensor(x), matrix, is_relu=True))
        assert np.isnan(got[1]).all()
        np.testing.assert_array_equal(got[0], 1)

    def test_damage_reaches_products_with_packed_weights(self) -> None:
        rows = encoded(np.random.default_rng(6), "q4_0", 4, 64)
        matrix = upload_matrix(rows, "q4_0", 64, DEVICE)
        x = np.ones((4, 64), np.float32)
        x[1, 30], x[2, 63], x[3] = np.nan, -np.inf, 0
        got = array(matvec(tensor(x), matrix))
        assert np.isfinite(got[0]).all()
        assert np.isnan(got[1:3]).all()
        np.testing.assert_array_equal(got[3], 0)

    def test_inputs_of_any_size(self) -> None:
        rows = encoded(np.random.default_rng(7), "q8_0", 5, 96)
        matrix = upload_matrix(rows, "q8_0", 96, DEVICE)
        x = numbers(np.random.default_rng(8), 8, 96)
        x *= np.float32(10) ** np.arange(-28, 36, 8)[:, None].astype(np.float32)
        expected = product(rounded_for("q8_0", x), Linear(reference("q8_0", rows)))
        for got, row in zip(array(matvec(tensor(x), matrix)), expected, strict=True):
            assert_close(got, row, "one operation, float")

    def test_inputs_that_do_not_fit(self) -> None:
        matrix = empty_matrix("f16", 4, 32, DEVICE)
        for x in (
            torch.ones((9, 32), device=DEVICE),
            torch.ones((0, 32), device=DEVICE),
            torch.ones((1, 33), device=DEVICE),
            torch.ones((1, 32), device=DEVICE, dtype=torch.float16),
            torch.ones((32, 2), device=DEVICE).T,
        ):
            with pytest.raises(ShapeError, match="expected contiguous f32"):
                matvec(x, matrix)
