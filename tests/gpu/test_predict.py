"""Predictors on a device, against the numpy reference."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from int8_inputs import rounded_for
from powerinfer.ops.gpu.formats import device_format
from powerinfer.ops.gpu.matrix import DeviceMatrix, upload_matrix
from powerinfer.ops.gpu.selection import DevicePredictor, predict
from powerinfer.ops.operands import NeuronPredictor, ScoreStage
from powerinfer.ops.reference.matrix import ReferenceMatrix
from powerinfer.ops.reference.predictor import predicted_mask
from powerinfer.quant import get_format
from powerinfer.values import FloatArray

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def tensor(values: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(values)).to(DEVICE)


def array(values: Any) -> FloatArray:
    got: FloatArray = values.cpu().numpy()
    return got


@dataclass(frozen=True)
class Form:
    """What a random predictor looks like.

    Attributes:
        names: formats of its stages.
        rank: of fc1; 0: it has none.
        is_centred: whether something is subtracted from its input.
        neurons: it decides on.
        hidden: size of its input.
    """

    names: tuple[str, ...]
    rank: int = 0
    is_centred: bool = False
    neurons: int = 50
    hidden: int = 256


# Between no two scores that rounding could swap, at the seeds of the tests that say so.
THRESHOLD = -0.11


class Pair:
    """A random predictor in the reference and on the device."""

    def __init__(self, form: Form, seed: int) -> None:
        self.form = form
        self.rng = np.random.default_rng(seed)
        fc1 = self.matrices("f16", form.rank, form.hidden) if form.rank else (None, None)
        center = self.numbers(form.hidden) / np.float32(4) if form.is_centred else None
        stages, placed = [], []
        for name in form.names:
            matrix, uploaded = self.matrices(name, form.neurons, 256)
            bias = self.numbers(form.neurons) / np.float32(4)
            stages.append(ScoreStage(matrix, bias, THRESHOLD))
            placed.append(ScoreStage(uploaded, tensor(bias), THRESHOLD))
        self.reference = NeuronPredictor(fc1[0], center, tuple(stages), native=None)
        self.on_device: DevicePredictor = NeuronPredictor(
            fc1[1], None if center is None else tensor(center), tuple(placed)
        )

    def numbers(self, *shape: int) -> FloatArray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def matrices(self, name: str, rows: int, columns: int) -> tuple[ReferenceMatrix, DeviceMatrix]:
        encoded = get_format(name).encode(self.numbers(rows, columns) / np.float32(16))
        values = get_format(name).decode(encoded)
        matrix = ReferenceMatrix(values, encoded.nbytes, is_binary=name == "sign")
        return matrix, upload_matrix(encoded, name, columns, DEVICE)


class TestFewTokens:
    """Masks equal the reference's, but for scores that rounding alone could move over it."""

    def check(self, form: Form, num_tokens: int) -> None:
        pair = Pair(form, seed=num_tokens)
        x = pair.numbers(num_tokens, form.hidden)
        expected = predicted_mask(x, pair.reference)
        assert expected.any()
        assert not expected.all()
        got = predict(tensor(x), pair.on_device)
        assert got.dtype == torch.uint8
        is_settled, wanted = Bound(pair, x, is_few=True).settled()
        assert is_settled.mean() > 0.9
        np.testing.assert_array_equal(array(got)[is_settled], wanted[is_settled])

    @pytest.mark.parametrize(
        "names", (("f16",), ("q8_0",), ("lowbit2",), ("sign", "lowbit3"), ("sign", "f16"))
    )
    @pytest.mark.parametrize("num_tokens", (1, 3))
    @pytest.mark.parametrize(("rank", "centred"), ((0, False), (0, True), (96, False)))
    def test_kinds(self, names: tuple[str, ...], num_tokens: int, rank: int, centred: bool) -> None:
        self.check(Form(names, rank, centred), num_tokens)

    def test_scores_that_are_no_numbers_pass(self) -> None:
        encoded = get_format("f16").encode(np.eye(6, 32, dtype=np.float32))
        stage: Any = ScoreStage(upload_matrix(encoded, "f16", 32, DEVICE), None, 0.5)
        x = np.zeros((2, 32), np.float32)
        x[0, 2], x[1, 31] = 1.0, np.nan
        got = array(predict(tensor(x), NeuronPredictor(None, None, (stage, stage))))
        np.testing.assert_array_equal(got, [[0, 0, 1, 0, 0, 0], [1] * 6])


KINDS = (
    Form(("f32",)),
    Form(("f16",), is_centred=True),
    Form(("bf16",)),
    Form(("q8_0",), is_centred=True),
    Form(("q4_0",)),
    Form(("lowbit2",), is_centred=True),
    Form(("lowbit3",)),
    Form(("sign",), is_centred=True),
    Form(("sign", "lowbit3"), is_centred=True),
    Form(("sign", "lowbit2", "f16")),
    Form(("f16",), rank=96),
    Form(("q4_0",), rank=96, is_centred=True),
)


class Bound:
    """How far from the exact scores those of either path may be, stage by stage.

    A product of n numbers is off by at most (2 u + n e) times that of the magnitudes: u = 2^-11
    for rounding an activation, and once more for a decoded weight, to f16 (together 2^-8 for an
    activation to bf16); e = 2^-23 for each sum in f32. Half the smallest f16 covers what is rounded
    as no normal number: activations have been scaled to at least 1, and weights here are below 1.
    With packed weights few tokens are rounded to int8 blocks first; in a tie, or near one, a number
    of a row may be rounded to the next code.
    """

    def __init__(self, pair: Pair, x: FloatArray, *, is_few: bool = False) -> None:
        reference = pair.reference
        self._unit = 2.0**-9 if "bf16" in pair.form.names else 2.0**-11
        if is_few:
            # Floats meet f32, and packed weights what was rounded already.
            self._unit = 0.0
        inputs = x.astype(np.float64)
        off = np.zeros_like(inputs)
        if reference.center is not None:
            inputs = inputs - reference.center
            off = np.abs(inputs) * 2.0**-23
        if reference.fc1 is not None:
            inputs, off = self._product(inputs, off, reference.fc1.values)
            inputs = np.maximum(inputs, 0.0)
        self.scores, self.offs = [], []
        for name, stage in zip(pair.form.names, reference.stages, strict=True):
            factor, factor_off = (inputs, off)
            if stage.matrix.is_binary:
                # Zeros at the end count as padding.
                places = np.arange(inputs.shape[1]) + 1
                lengths = np.max(np.where(inputs != 0, places, 1), axis=1, keepdims=True)
                sizes = np.abs(inputs).sum(axis=1, keepdims=True) / lengths
                factor = np.where(inputs < 0, -sizes, sizes) * (places <= lengths)
                # A number whose sign rounding may turn; none is negative after a rectifier.
                is_unsure = (np.abs(inputs) <= off) & (reference.fc1 is None)
                mean_off = off.mean(axis=1, keepdims=True) + sizes * inputs.shape[1] * 2.0**-23
                factor_off = np.where(is_unsure, 2 * sizes, 0.0) + mean_off
            next_code: Any = 0.0
            if is_few and device_format(name).is_packed and not stage.matrix.is_binary:
                step = np.abs(factor).max(axis=1, keepdims=True) / 127
                next_code = step * np.abs(stage.matrix.values).max(axis=1)
                factor = rounded_for(name, factor.astype(np.float32)).astype(np.float64)
            scores, scores_off = self._product(factor, factor_off, stage.matrix.values)
            scores_off = scores_off + next_code
            bias = 0.0 if stage.bias is None else stage.bias
            self.scores.append(scores + bias)
            self.offs.append(scores_off + np.abs(scores + bias) * 2.0**-23)

    def _product(self, x: Any, off: Any, weights: FloatArray) -> tuple[Any, Any]:
        wide = weights.astype(np.float64)[:, : x.shape[1]]
        size = np.abs(wide)
        share = 2 * self._unit + x.shape[1] * 2.0**-23
        smallest = 2.0**-25 * np.abs(x).max(axis=1, keepdims=True)
        off = (
            share * (np.abs(x) @ size.T) + off @ size.T + smallest * (size.sum(axis=1) + x.shape[1])
        )
        return x @ wide.T, off

    def settled(self) -> tuple[Any, Any]:
        """Where both paths must agree, bool[num_tokens, neurons], and on what."""
        passes, fails = np.ones(self.scores[0].shape, bool), np.zeros(self.scores[0].shape, bool)
        threshold = np.float64(np.float32(THRESHOLD))
        for scores, off in zip(self.scores, self.offs, strict=True):
            passes &= scores - off >= threshold
            fails |= scores + off < threshold
        return passes | fails, passes


class TestManyTokens:
    """Dense products for all tokens at once."""

    @pytest.mark.parametrize("form", KINDS, ids=str)
    def test_masks_are_those_of_decoding_but_for_rounding(self, form: Form) -> None:
        pair = Pair(form, seed=0)
        x = pair.numbers(24, form.hidden)
        is_settled, expected = Bound(pair, x).settled()
        assert is_settled.mean() > 0.9
        many = array(predict(tensor(x), pair.on_device))
        few = np.concatenate([array(predict(some, pair.on_device)) for some in tensor(x).split(8)])
        assert many.dtype == np.uint8
        np.testing.assert_array_equal(many[is_settled], expected[is_settled])
        is_settled, expected = Bound(pair, x, is_few=True).settled()
        assert is_settled.mean() > 0.9
        np.testing.assert_array_equal(few[is_settled], expected[is_settled])
        assert expected.any()
        assert not expected.all()

    @pytest.mark.parametrize("form", KINDS, ids=str)
    def test_weights_are_read_once(self, form: Form) -> None:
        pair = Pair(form, seed=0)

        def operations(num_tokens: int) -> Counter[str]:
            counts: Counter[str] = Counter()
            with CountingMode(counts):
                predict(tensor(pair.numbers(num_tokens, form.hidden)), pair.on_device)
            return counts

        found = operations(9)
        assert found == operations(40)
        # Products of f16 with f32 results are another overload on CUDA.
        num_products = found["aten.mm"] + found["aten.mm.dtype"]
        assert num_products == len(form.names) + (form.rank > 0)

    def test_scores_that_are_no_numbers_pass(self) -> None:
        for names in (("f32",), ("f16",), ("sign", "q4_0")):
            pair = Pair(Form(names), seed=5)
            x = pair.numbers(12, 256)
            clean = array(predict(tensor(x), pair.on_device))
            x[7, 3] = np.nan
            got = array(predict(tensor(x), pair.on_device))
            assert got[7].all()
            others = np.arange(12) != 7
            np.testing.assert_array_equal(got[others], clean[others])
            assert not got[others].all()


class CountingMode(TorchDispatchMode):
    """Counts what torch is asked to compute."""

    def __init__(self, counts: "Counter[str]") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = counts

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.counts[str(func).removesuffix(".default")] += 1
        return func(*args, **(kwargs or {}))
