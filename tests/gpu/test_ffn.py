"""The neurons that lie on a device, against the numpy reference."""

from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from int8_inputs import rounded_for
from powerinfer.errors import ShapeError
from powerinfer.ops.gpu import ffn as gpu_ffn
from powerinfer.ops.gpu import linear as gpu_linear
from powerinfer.ops.gpu.ffn import (
    HotNeurons,
    hot_ffn,
    masked_ffn,
)
from powerinfer.ops.gpu.kernels import matvec
from powerinfer.ops.gpu.kernels.listing import write_cold
from powerinfer.ops.gpu.kernels.prompts import select_values
from powerinfer.ops.gpu.matrix import DeviceMatrix, empty_matrix, write_rows
from powerinfer.ops.operands import FFN, FFNCounters, Linear
from powerinfer.ops.reference.ffn import ReferenceFFN, run_ffn
from powerinfer.ops.reference.matrix import ReferenceMatrix
from powerinfer.quant import get_format
from powerinfer.values import Activation, ActivationKind, ByteArray, FloatArray
from tolerances import assert_close

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RELU = Activation(ActivationKind.RELU)
ROWS = {"f32": "float", "bf16": "bf16 on a GPU"}
"""Rows of the table of tolerances for many tokens, whose activations are rounded to f16 else."""
ENCODINGS_IN_PIECES = (
    "f16",
    "q4_0",
    "q5_k",
    *(
        pytest.param(name, marks=pytest.mark.thorough)
        for name in ("f32", "bf16", "q8_0", "q4_k", "q6_k")
    ),
)
"""One of each kind; the interpreter takes seconds for each."""
Mask = npt.NDArray[np.bool_]


def tensor(values: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(values)).to(DEVICE)


def device_mask(mask: Mask | None) -> Any:
    return None if mask is None else tensor(mask.astype(np.uint8))


def array(values: Any) -> FloatArray:
    got: FloatArray = values.cpu().numpy()
    return got


@dataclass
class Form:
    """What a random block looks like.

    Attributes:
        sizes: hidden size, neurons, slots, neurons that have one.
        format_name: of its matrices.
        activation: of it.
        is_gated: whether it has a gate.
        has_bias: whether it has biases.
        is_exact: whether neurons that do not fire are skipped without a mask.
    """

    sizes: tuple[int, int, int, int] = (64, 96, 40, 30)
    format_name: str = "f16"
    activation: Activation = RELU
    is_gated: bool = True
    has_bias: bool = False
    is_exact: bool = True


class Block:
    """A random block in the reference, and some of its neurons in random slots of the device."""

    def __init__(self, form: Form, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.form = form
        hidden, neurons, num_slots, num_hot = form.sizes
        self.hot_ids = self.rng.choice(neurons, num_hot, replace=False).astype(np.int32)
        self.slots = self.rng.choice(num_slots, num_hot, replace=False).astype(np.int32)
        of_slot, of_neuron = np.full(num_slots, -1, np.int32), np.full(neurons, -1, np.int32)
        of_slot[self.slots], of_neuron[self.hot_ids] = self.hot_ids, self.slots
        self.is_hot = of_neuron >= 0
        (gate, gate_on), (up, up_on), (down, down_on) = (self._matrix() for _ in range(3))
        gate_bias, up_bias, down_bias = (self._bias(size) for size in (neurons, neurons, hidden))
        self.counters = torch.zeros(3, dtype=torch.int64, device=DEVICE)
        self.ffn: ReferenceFFN = FFN(
            Linear(gate, gate_bias) if form.is_gated else None,
            Linear(up, up_bias),
            Linear(down, down_bias),
            form.activation,
            is_down_transposed=True,
            is_exact_sparse=form.is_exact and form.activation.is_sparse,
            native=None,
        )
        self.hot = HotNeurons(
            gate_on if form.is_gated else None,
            up_on,
            down_on,
            tensor(of_slot),
            tensor(of_neuron),
            form.activation,
            form.is_exact,
            self._slot_bias(gate_bias),
            self._slot_bias(up_bias),
            None if down_bias is None else tensor(down_bias),
            self.counters,
        )

    def numbers(self, *shape: int) -> FloatArray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def mask(self, num_tokens: int, share: float) -> Mask:
        found: Mask = self.rng.random((num_tokens, len(self.is_hot))) < share
        return found

    def expected(
        self,
        x: FloatArray,
        mask: Mask | None,
        counters: FFNCounters,
        weights: FloatArray | None = None,
    ) -> FloatArray:
        """The hot part: what the reference computes where only hot neurons count."""
        counted = np.broadcast_to(self.is_hot, (len(x), len(self.is_hot)))
        counted = counted if mask is None else mask & counted
        return run_ffn(x, self.ffn, counted, counters, weights)

    def _encoded(self, rows: int) -> ByteArray:
        encoded: ByteArray = get_format(self.form.format_name).encode(
            self.numbers(rows, self.form.sizes[0]) / np.float32(8)
        )
        return encoded

    def _matrix(self) -> tuple[ReferenceMatrix, DeviceMatrix]:
        name, (hidden, neurons, num_slots, _) = self.form.format_name, self.form.sizes
        rows = self._encoded(neurons)
        matrix = empty_matrix(name, num_slots, hidden, DEVICE)
        # Free slots hold neurons that were there before.
        write_rows(matrix, np.arange(num_slots, dtype=np.int32), self._encoded(num_slots))
        write_rows(matrix, self.slots, rows[self.hot_ids])
        return ReferenceMatrix(get_format(name).decode(rows), rows.nbytes), matrix

    def _bias(self, size: int) -> FloatArray | None:
        return self.numbers(size) / np.float32(4) if self.form.has_bias else None

    def _slot_bias(self, bias: FloatArray | None) -> Any:
        if bias is None:
            return None
        placed = np.full(self.form.sizes[2], np.nan, np.float32)
        placed[self.slots] = bias[self.hot_ids]
        return tensor(placed)


def activations() -> list[Activation]:
    return [
        Activation(kind, 0.2 if kind is ActivationKind.FATRELU else 0.0) for kind in ActivationKind
    ]


class TestFewTokens:
    """Up to 8 tokens."""

    def check(self, block: Block, num_tokens: int, share: float | None) -> None:
        x = block.numbers(num_tokens, block.form.sizes[0])
        mask = None if share is None else block.mask(num_tokens, share)
        counters = FFNCounters()
        expected = block.expected(rounded_for(block.form.format_name, x), mask, counters)
        block.counters.zero_()
        got = hot_ffn(tensor(x), block.hot, device_mask(mask))
        assert_close(array(got), expected, "one operation, float")
        assert torch.equal(got, hot_ffn(tensor(x), block.hot, device_mask(mask)))
        if mask is None and not block.hot.is_skipping:
            assert block.counters.tolist() == [0, 0, 0]
            return
        read = block.is_hot & (np.ones(1, bool) if mask is None else mask.any(axis=0))
        twice = [2 * counters.active, 2 * counters.predicted, 2 * int(read.sum())]
        assert block.counters.tolist() == twice

    @pytest.mark.each_value
    @pytest.mark.parametrize(("number", "activation"), list(enumerate(activations())))
    @pytest.mark.parametrize("is_gated", (True, False))
    def test_every_activation(self, number: int, activation: Activation, is_gated: bool) -> None:
        form = Form(activation=activation, is_gated=is_gated, has_bias=True)
        block = Block(form, seed=number)
        self.check(block, 2, 0.4)
        self.check(block, 1, None)

    @pytest.mark.parametrize("name", ("f32", "f16", "bf16", "q8_0", "q4_0"))
    def test_every_encoding(self, name: str) -> None:
        block = Block(Form(format_name=name, has_bias=True), seed=3)
        self.check(block, 1, 0.5)
        self.check(block, 3, None)
        self.check(Block(replace(block.form, is_exact=False), seed=4), 1, None)

    @pytest.mark.parametrize("name", ("q4_k", "q5_k", "q6_k"))
    def test_k_quants(self, name: str) -> None:
        block = Block(Form((256, 48, 20, 15), name), seed=15)
        self.check(block, 1, 0.5)
        self.check(block, 3, None)
        self.check(Block(Form((768, 12, 12, 9), name), seed=16), 1, 0.5)

    def test_every_number_of_tokens(self) -> None:
        block = Block(Form(), seed=5)
        for num_tokens in range(1, 9):
            self.check(block, num_tokens, 0.3)
            self.check(block, num_tokens, None)

    def test_sets_from_empty_to_full(self) -> None:
        for num_hot in (0, 1, 40):
            block = Block(Form((33, 70, 40, num_hot), "f32", has_bias=True), seed=num_hot)
            for share in (0.0, 1.0, None):
                self.check(block, 2, share)

    def test_lists_of_several_segments(self) -> None:
        block = Block(Form((32, 2300, 2200, 1100), has_bias=True), seed=6)
        with mock.patch.object(gpu_ffn, "_LISTED_ROWS", 8):
            self.check(block, 1, 0.1)
        # Slots of the middle segment alone.
        mask = np.zeros((1, 2300), bool)
        chosen = (block.slots >= 1024) & (block.slots < 2048)
        mask[0, block.hot_ids[chosen][:9]] = True
        x = block.numbers(1, 32)
        got = hot_ffn(tensor(x), block.hot, device_mask(mask))
        assert_close(array(got), block.expected(x, mask, FFNCounters()), "one operation, float")

    def test_widths_of_several_blocks(self) -> None:
        self.check(Block(Form((1100, 20, 20, 20)), seed=7), 1, 0.5)
        self.check(Block(Form((1056, 20, 20, 20), "q8_0"), seed=8), 4, None)

    def test_small_tiles(self) -> None:
        # Those of a GPU, where the interpreter takes larger ones.
        for wanted in (3, 512):
            with (
                mock.patch.object(matvec, "_WANTED_PROGRAMS", wanted),
                mock.patch.object(matvec, "_MOST_ROWS", 4),
                mock.patch.object(gpu_ffn, "_LISTED_ROWS", 2),
                mock.patch.object(gpu_ffn, "_PARTS", 32),
            ):
                block = Block(Form((65, 50, 40, 30), has_bias=True), seed=wanted)
                self.check(block, 1, 0.4)
                self.check(block, 8, None)

    def test_no_slots(self) -> None:
        block = Block(Form((32, 10, 4, 2), has_bias=True), seed=9)
        empty = empty_matrix("f16", 0, 32, DEVICE)
        slots = tensor(np.zeros(0, np.int32))
        none = replace(block.hot, gate=empty, up=empty, down=empty, neuron_of_slot=slots)
        got = hot_ffn(tensor(block.numbers(2, 32)), none, None)
        assert block.ffn.down.bias is not None
        np.testing.assert_array_equal(array(got), np.tile(block.ffn.down.bias, (2, 1)))

    def test_damage_reaches_the_result(self) -> None:
        x = np.ones((2, 32), np.float32)
        x[1, 7] = np.nan
        for activation in activations():
            block = Block(Form((32, 10, 10, 10), activation=activation), seed=10)
            for mask in (None, np.ones((2, 10), bool)):
                got = array(hot_ffn(tensor(x), block.hot, device_mask(mask)))
                assert np.isfinite(got[0]).all(), str(activation)
                assert np.isnan(got[1]).all(), str(activation)

    def test_inputs_that_do_not_fit(self) -> None:
        block = Block(Form(), seed=11)
        with pytest.raises(ShapeError):
            hot_ffn(tensor(block.numbers(9, 64)), block.hot, None)
        with pytest.raises(ShapeError):
            hot_ffn(tensor(block.numbers(1, 65)), block.hot, None)


class TestManyTokens:
    """Dense products with a mask."""

    def check(self, block: Block, num_tokens: int, share: float | None) -> None:
        x = block.numbers(num_tokens, block.form.sizes[0])
        mask = None if share is None else block.mask(num_tokens, share)
        expected = block.expected(x, mask, FFNCounters())
        got = masked_ffn(tensor(x), block.hot, device_mask(mask))
        row = f"one operation, {ROWS.get(block.form.format_name, 'f16')}"
        assert_close(array(got), expected, row)

    @pytest.mark.each_value
    @pytest.mark.parametrize(("number", "activation"), list(enumerate(activations())))
    @pytest.mark.parametrize("is_gated", (True, False))
    def test_every_activation(self, number: int, activation: Activation, is_gated: bool) -> None:
        form = Form((64, 96, 40, 30), "f32", activation, is_gated, has_bias=True)
        self.check(Block(form, seed=number), 11, 0.4)

    @pytest.mark.parametrize("name", ENCODINGS_IN_PIECES)
    def test_every_encoding_in_pieces(self, name: str) -> None:
        hidden = 256 if name.endswith("_k") else 128
        with mock.patch.object(gpu_linear, "PANEL_BYTES", 1400):
            block = Block(Form((hidden, 96, 60, 50), name), seed=12)
            self.check(block, 20, 0.5)
            self.check(block, 9, None)

    def test_chunks_of_weights_that_pass_through(self) -> None:
        form = Form((64, 40, 40, 40), "f32", has_bias=True)
        block = Block(form, seed=13)
        x, mask = block.numbers(12, 64), block.mask(12, 0.5)
        expected = block.expected(x, mask, FFNCounters())
        chunk = replace(block.hot, neuron_of_slot=block.hot.neuron_of_slot[:25])
        got = masked_ffn(tensor(x), chunk, device_mask(mask), has_down_bias=False)
        rest = masked_ffn(tensor(x), block.hot, device_mask(mask), has_down_bias=True)
        only_last = mask.copy()
        only_last[:, array(block.hot.neuron_of_slot)[:25]] = False
        last = masked_ffn(tensor(x), block.hot, device_mask(only_last))
        assert_close(array(rest), expected, "one operation, float")
        assert_close(array(got + last), expected, "one operation, float")

    def test_counts_are_those_of_few_tokens(self) -> None:
        block = Block(Form((64, 96, 40, 30), "f32"), seed=14)
        x = tensor(block.numbers(8, 64))
        for share in (0.3, None):
            mask = device_mask(None if share is None else block.mask(8, share))
            block.counters.zero_()
            hot_ffn(x, block.hot, mask)
            counts = block.counters.tolist()
            masked_ffn(x, block.hot, mask)
            assert block.counters.tolist() == [2 * count for count in counts]


class TestValues:
    """Values of many tokens: who is selected, and how many there are."""

    @pytest.mark.parametrize("has_table", (False, True))
    @pytest.mark.parametrize("has_mask", (False, True))
    def test_others_are_cleared_and_the_rest_counted(self, has_table: bool, has_mask: bool) -> None:
        # More tokens than a tile, fewer slots than neurons.
        rng = np.random.default_rng(15)
        num_tokens, slots, neurons = 70, 90, 130
        values = rng.standard_normal((num_tokens, slots)).astype(np.float32)
        values[rng.random(values.shape) < 0.4] = 0
        values[3, 5], values[4, 6] = np.nan, np.inf
        table = rng.permutation(neurons)[:slots].astype(np.int32)
        table[::7] = -1
        # A part of a wider mask.
        wide = (rng.random((num_tokens, neurons + 9)) < 0.02).astype(np.uint8)
        mask = wide[:, 9:]
        selected = np.ones(values.shape, bool)
        if has_table:
            selected &= table >= 0
        if has_mask:
            selected &= mask[:, table if has_table else np.arange(slots)] != 0
        expected = np.where(selected, values, 0)
        counts = [np.count_nonzero(expected), selected.sum(), selected.any(axis=0).sum()]
        counters = torch.full((3,), 100, dtype=torch.int64, device=DEVICE)
        on_device = tensor(values)
        select_values(
            on_device,
            tensor(table) if has_table else None,
            tensor(wide)[:, 9:] if has_mask else None,
            counters,
        )
        np.testing.assert_array_equal(array(on_device), expected)
        assert counters.tolist() == [100 + count for count in counts]


class TestWeights:
    """Values of neurons times a weight: of an expert for a token, or a neuron's own."""

    def check(self, block: Block, weights: FloatArray, share: float | None) -> None:
        num_tokens = len(weights)
        x = block.numbers(num_tokens, block.form.sizes[0])
        mask = None if share is None else block.mask(num_tokens, share)
        expected = block.expected(x, mask, FFNCounters(), weights)
        assert not np.allclose(expected, block.expected(x, mask, FFNCounters()), atol=1e-2)
        few = hot_ffn(tensor(x), block.hot, device_mask(mask), tensor(weights))
        many = masked_ffn(tensor(x), block.hot, device_mask(mask), tensor(weights))
        assert_close(array(few), expected, "one operation, float")
        assert_close(array(many), expected, "one operation, float")

    @pytest.mark.each_value
    @pytest.mark.parametrize(("number", "activation"), list(enumerate(activations())))
    @pytest.mark.parametrize("is_gated", (True, False))
    def test_every_activation(self, number: int, activation: Activation, is_gated: bool) -> None:
        form = Form((64, 96, 40, 30), "f32", activation, is_gated, has_bias=True)
        block = Block(form, seed=30 + number)
        # Four experts, of which a token takes some.
        weights = np.abs(block.numbers(3, 4))
        weights[[0, 1, 2], [1, 3, 0]] = 0.0
        self.check(block, weights, 0.5)
        self.check(block, weights, None)

    def test_every_size_of_a_group(self) -> None:
        for num_weights in (1, 2, 32, 96):
            block = Block(Form((64, 96, 40, 30), "f32"), seed=num_weights)
            self.check(block, block.numbers(2, num_weights), 0.5)
            self.check(block, block.numbers(1, num_weights), None)

    def test_what_does_not_count_may_weigh_anything(self) -> None:
        block = Block(Form((64, 96, 40, 30), "f32"), seed=40)
        x, mask = block.numbers(2, 64), block.mask(2, 0.5)
        weights = np.where(mask, block.numbers(2, 96), np.float32(np.inf))
        expected = block.expected(x, mask, FFNCounters(), np.where(mask, weights, np.float32(0)))
        for run in (hot_ffn, masked_ffn):
            got = run(tensor(x), block.hot, device_mask(mask), tensor(weights))
            assert_close(array(got), expected, "one operation, float")

    def test_streamed_weights_have_those_of_their_neurons(self) -> None:
        block = Block(Form((64, 40, 40, 40), "f32"), seed=41)
        x, weights = block.numbers(12, 64), block.numbers(12, 40)
        table = block.hot.neuron_of_slot[:25]
        sent = np.zeros((12, 40), bool)
        sent[:, array(table)] = True
        expected = block.expected(x, sent, FFNCounters(), weights)
        chunk = replace(block.hot, neuron_of_slot=table)
        got = masked_ffn(tensor(x), chunk, None, tensor(weights))
        assert_close(array(got), expected, "one operation, float")

    def test_weights_that_do_not_fit(self) -> None:
        block = Block(Form((64, 96, 40, 30), "f32"), seed=42)
        x = tensor(block.numbers(2, 64))
        for shape in ((1, 4), (2, 5), (2, 0), (2,)):
            for run in (hot_ffn, masked_ffn):
                with pytest.raises(ShapeError, match="2 tokens and 96 neurons"):
                    run(x, block.hot, None, torch.ones(shape, device=DEVICE))


class TestColdBits:
    """The bits of the neurons that the CPU must compute."""

    def written(self, block: Block, mask: Mask | None, num_tokens: int) -> Mask:
        neurons = block.form.sizes[1]
        words = torch.full((num_tokens, -(-neurons // 32)), -1, dtype=torch.int32)
        words = words.pin_memory() if DEVICE.type == "cuda" else words
        write_cold(device_mask(mask), block.hot.slot_of_neuron, words)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        bits = np.unpackbits(words.numpy().view(np.uint8), axis=1, bitorder="little")
        assert not bits[:, neurons:].any()
        return bits[:, :neurons].astype(bool)

    def test_bits_are_the_cold_neurons_that_passed(self) -> None:
        for neurons, num_hot in ((31, 7), (64, 64), (1100, 0), (2049, 900)):
            block = Block(Form((32, neurons, max(1, num_hot), num_hot)), seed=neurons)
            for num_tokens in (1, 3):
                mask = block.mask(num_tokens, 0.5)
                got = self.written(block, mask, num_tokens)
                np.testing.assert_array_equal(got, mask & ~block.is_hot)
            everyone = self.written(block, None, 2)
            np.testing.assert_array_equal(everyone, np.tile(~block.is_hot, (2, 1)))

    def test_hot_and_cold_parts_make_the_whole(self) -> None:
        for seed, share in ((20, 0.3), (21, None)):
            block = Block(Form((64, 90, 50, 41), "q8_0", has_bias=True), seed)
            x = rounded_for("q8_0", block.numbers(3, 64))
            mask = None if share is None else block.mask(3, share)
            unbiased = replace(block.ffn, down=Linear(block.ffn.down.matrix))
            cold = run_ffn(x, unbiased, self.written(block, mask, 3), FFNCounters())
            hot = array(hot_ffn(tensor(x), block.hot, device_mask(mask)))
            expected = run_ffn(x, block.ffn, mask, FFNCounters())
            assert_close(hot + cold, expected, "one operation, float")

    def test_words_that_do_not_fit(self) -> None:
        block = Block(Form(), seed=22)
        with pytest.raises(ShapeError, match="expected 3"):
            write_cold(None, block.hot.slot_of_neuron, torch.zeros((1, 4), dtype=torch.int32))
