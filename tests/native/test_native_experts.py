"""Mixtures of experts of the extension: against numpy, and with matrices filled when chosen."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from powerinfer import _core
from powerinfer.errors import ShapeError
from powerinfer.quant import get_format
from powerinfer.values import ByteArray, FloatArray, IntArray

EXPERTS, USED, HIDDEN, SIZE = 6, 2, 256, 512
Matrices = dict[str, _core.Matrix]


def _random(seed: int, *shape: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(0.125)


WEIGHTS = {
    "gate": _random(1, EXPERTS, SIZE, HIDDEN),
    "up": _random(2, EXPERTS, SIZE, HIDDEN),
    "down": _random(3, EXPERTS, HIDDEN, SIZE),
}
ROUTER = _random(4, EXPERTS, HIDDEN)


def _matrix(data: ByteArray, format_name: str, rows: int, columns: int) -> _core.Matrix:
    return _core.Matrix(np.ascontiguousarray(data).reshape(-1), format_name, rows, columns)


def _encoded(values: FloatArray, format_name: str) -> ByteArray:
    if format_name == "f32":
        return values.view(np.uint8)
    return get_format(format_name).encode(values)


def _plain(format_name: str) -> Matrices:
    return {
        name: _matrix(
            _encoded(w.reshape(-1, w.shape[2]), format_name),
            format_name,
            len(w) * w.shape[1],
            w.shape[2],
        )
        for name, w in WEIGHTS.items()
    }


def _repacked(team: _core.ThreadTeam, matrices: Matrices) -> Matrices:
    arena = _core.Arena()
    return {name: _core.repack(team, matrix, arena) for name, matrix in matrices.items()}


def _ffn(matrices: Matrices, activation: str = "relu") -> _core.FFN:
    router = _matrix(ROUTER.view(np.uint8), "f32", EXPERTS, HIDDEN)
    return _core.FFN(
        (matrices["gate"], None),
        (matrices["up"], None),
        (matrices["down"], None),
        activation,
        0.0,
        False,
        True,
        _core.Router(router, None, "softmax", USED, True),
    )


def _run(
    team: _core.ThreadTeam, ffn: _core.FFN, x: FloatArray, is_prompt: bool = False
) -> FloatArray:
    out = np.full_like(x, np.nan)
    _core.ffn(team, x, ffn, out, is_prompt=np.full(len(x), is_prompt))
    return out


def _route(team: _core.ThreadTeam, ffn: _core.FFN, x: FloatArray) -> tuple[IntArray, FloatArray]:
    ids = np.empty((len(x), USED), np.int32)
    weights = np.empty((len(x), USED), np.float32)
    _core.route(team, ffn, x, ids, weights)
    return ids, weights


def _reference(x: FloatArray, ids: IntArray, weights: FloatArray) -> FloatArray:
    out = np.zeros_like(x)
    for t, row in enumerate(x):
        for e, weight in zip(ids[t], weights[t], strict=True):
            values = np.maximum(WEIGHTS["gate"][e] @ row, 0) * (WEIGHTS["up"][e] @ row)
            out[t] += weight * (WEIGHTS["down"][e] @ values)
    return out


@pytest.mark.parametrize("is_prompt", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 7])
def test_experts_equal_numpy(kernels: str, num_tokens: int, is_prompt: bool) -> None:
    team = _core.ThreadTeam(2, kernels)
    ffn = _ffn(_plain("f32"))
    x = _random(5, num_tokens, HIDDEN)
    ids, weights = _route(team, ffn, x)
    logits = x @ ROUTER.T
    assert (ids == np.sort(np.argsort(-logits, axis=1)[:, :USED], axis=1)).all()
    chosen = np.exp(np.take_along_axis(logits, ids, axis=1))
    np.testing.assert_allclose(weights, chosen / chosen.sum(1, keepdims=True), rtol=1e-4)
    expected = _reference(x, ids, weights)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(
        _run(team, ffn, x, is_prompt) / scale, expected / scale, atol=1e-3 if is_prompt else 1e-5
    )


def test_router_may_see_another_input(kernels: str) -> None:
    team = _core.ThreadTeam(2, kernels)
    ffn = _ffn(_plain("f32"))
    x, routed = _random(5, 3, HIDDEN), _random(6, 3, HIDDEN)
    out = np.empty_like(x)
    _core.ffn(team, x, ffn, out, router_input=routed)
    expected = _reference(x, *_route(team, ffn, routed))
    np.testing.assert_allclose(out, expected, atol=1e-4 * np.abs(expected).max())
    listed = np.empty_like(x)
    offsets = np.arange(4, dtype=np.int64) * EXPERTS * SIZE
    ids = np.tile(np.arange(EXPERTS * SIZE, dtype=np.int32), 3)
    stats = _core.ffn_active(team, x, ffn, offsets, ids, listed, router_input=routed)
    assert (listed == out).all()
    assert stats.predicted == 3 * USED * SIZE


def _lazy(
    arrays: dict[str, ByteArray], format_name: str, is_merged: bool, repack: bool
) -> Matrices:
    """Matrices of experts over arrays that hold all rows of all experts."""
    arena = _core.Arena()
    matrices = {}
    for name, data in arrays.items():
        rows, columns = WEIGHTS[name].shape[1:]
        parts: Sequence[ByteArray] = [data] if is_merged else np.split(data, EXPERTS)
        pieces = [
            _core.Matrix(part, format_name, EXPERTS * rows // len(parts), columns) for part in parts
        ]
        matrices[name] = _core.expert_matrix(pieces, rows, arena, repack)
        assert matrices[name].rows == EXPERTS * rows
    return matrices


def _mapped(folder: Path, format_name: str) -> dict[str, ByteArray]:
    arrays: dict[str, ByteArray] = {}
    for name, w in WEIGHTS.items():
        _encoded(w.reshape(-1, w.shape[2]), format_name).tofile(folder / name)
        arrays[name] = np.asarray(np.memmap(folder / name, np.uint8, "r"))
    return arrays


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize(("format_name", "repack"), [("q4_0", True), ("q8_0", False)])
def test_lazy_matrices_equal_plain_ones(
    tmp_path: Path, kernels: str, format_name: str, repack: bool, is_merged: bool
) -> None:
    team = _core.ThreadTeam(2, kernels)
    plain = _plain(format_name)
    expected = _ffn(_repacked(team, plain) if repack else plain)
    arrays = _mapped(tmp_path, format_name)
    for is_prompt in (False, True):
        lazy = _ffn(_lazy(arrays, format_name, is_merged, repack))
        for seed in range(3):
            x = _random(seed, 2, HIDDEN)
            assert (_run(team, lazy, x, is_prompt) == _run(team, expected, x, is_prompt)).all()


def test_pieces_without_a_mapping_stay_as_they_are() -> None:
    team = _core.ThreadTeam(2)
    data = _encoded(WEIGHTS["up"].reshape(-1, HIDDEN), "q4_0").reshape(-1).copy()
    before = data.copy()
    matrices = _lazy({"up": data}, "q4_0", True, True)
    _core.linear(
        team,
        _random(1, 1, HIDDEN),
        [matrices["up"]],
        [None],
        [np.empty((1, EXPERTS * SIZE), np.float32)],
    )
    assert (data == before).all()


def test_readers_that_know_no_experts_see_all_of_them(tmp_path: Path) -> None:
    team = _core.ThreadTeam(2)
    arrays = _mapped(tmp_path, "q4_0")
    x = _random(1, 2, HIDDEN)
    plain = _plain("q4_0")["up"]

    def lazy() -> _core.Matrix:
        return _lazy({"up": arrays["up"]}, "q4_0", True, True)["up"]

    def product(matrix: _core.Matrix) -> FloatArray:
        out = np.empty((2, EXPERTS * SIZE), np.float32)
        _core.linear(team, x, [matrix], [None], [out])
        return out

    expected = product(_core.repack(team, plain, _core.Arena()))
    assert (product(lazy()) == expected).all()
    copy = _core.recode(team, lazy(), "sign", _core.Arena())
    other = _core.recode(team, plain, "sign", _core.Arena())
    assert (product(copy) == product(other)).all()
    ids = np.arange(EXPERTS * SIZE, dtype=np.int32)
    rows = np.empty((len(ids), arrays["up"].size // len(ids)), np.uint8)
    _core.encoded_rows(team, lazy(), ids, rows)
    assert (rows.reshape(-1) == arrays["up"]).all()


def test_recorded_steps_fill_the_experts_they_choose(tmp_path: Path) -> None:
    team = _core.ThreadTeam(2)
    lazy = _ffn(_lazy(_mapped(tmp_path, "q4_0"), "q4_0", False, True))
    expected = _ffn(_repacked(team, _plain("q4_0")))
    zeros = np.zeros(1, np.int32)
    batch = _core.Batch(zeros, zeros, zeros.reshape(1, 1))
    x, out = _random(0, 1, HIDDEN), np.empty((1, HIDDEN), np.float32)
    record = _core.StepRecord()
    record.begin(team)
    _core.ffn(team, x, lazy, out)
    record.end(team)
    assert record.is_complete
    chosen = set()
    for seed in range(12):
        x[:] = _random(seed, 1, HIDDEN)
        record.run(team, batch, batch)
        assert (out == _run(team, expected, x)).all()
        chosen |= set(_route(team, expected, x)[0][0])
    assert len(chosen) > USED


@pytest.mark.parametrize("num_experts", [1, EXPERTS])
def test_predictors_may_have_lazy_matrices(tmp_path: Path, num_experts: int) -> None:
    team = _core.ThreadTeam(2)
    rank = 256
    fc1 = _random(7, num_experts * rank, HIDDEN)
    ffn = _ffn(_plain("q8_0"))
    x = _random(8, 3, HIDDEN)
    hidden = _matrix(fc1.view(np.uint8), "f32", num_experts * rank, HIDDEN)
    up = _lazy(_mapped(tmp_path, "q4_0"), "q4_0", False, True)["up"]
    whole = _core.repack(team, _plain("q4_0")["up"], _core.Arena())

    def run(fc2: _core.Matrix) -> FloatArray:
        predictor = _core.NeuronPredictor(hidden, None, [(fc2, None, 0.0)], num_experts)
        out = np.empty_like(x)
        _core.ffn(team, x, ffn, out, predictor)
        offsets, ids = _core.predict(team, x, predictor)
        listed = np.empty_like(x)
        stats = _core.ffn_active(team, x, ffn, offsets, ids, listed)
        assert 0 < stats.predicted < 3 * USED * SIZE
        assert (listed == out).all()
        return out

    assert (run(up) == run(whole)).all()


def test_shapes_are_checked(tmp_path: Path) -> None:
    matrices = _plain("f32")
    router = _matrix(ROUTER.view(np.uint8), "f32", EXPERTS, HIDDEN)
    with pytest.raises(ValueError, match="a router of 6 experts cannot choose 7"):
        _core.Router(router, None, "softmax", EXPERTS + 1, True)
    with pytest.raises(ValueError, match="no router rule 'max'"):
        _core.Router(router, None, "max", 1, True)
    few = _matrix(ROUTER[:4].view(np.uint8), "f32", 4, HIDDEN)
    parts = [(matrices[name], None) for name in ("gate", "up", "down")]
    with pytest.raises(ShapeError, match=r"down is \[1536, 512\]"):
        _core.FFN(
            parts[0],
            parts[1],
            parts[2],
            "silu",
            0.0,
            False,
            True,
            _core.Router(few, None, "softmax", 1, True),
        )
    arrays = _mapped(tmp_path, "q4_0")
    lazy = _lazy(arrays, "q4_0", False, True)
    with pytest.raises(ValueError, match="no router"):
        _core.FFN((None, None), (lazy["up"], None), (lazy["up"], None), "relu", 0.0, True, True)
    with pytest.raises(ShapeError, match="not made of experts of 500"):
        _core.expert_matrix([_plain("q4_0")["up"]], 500, _core.Arena(), False)
