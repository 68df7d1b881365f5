"""Plans as JSON: round trips, and one clear error for anything else."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from placement_cases import model_shape, plans
from powerinfer.errors import PlacementError
from powerinfer.placement.plan import PLAN, LayerPlacement, PlacementPlan
from powerinfer.placement.solvers import get_solver


def _assert_same(ours: PlacementPlan, theirs: PlacementPlan) -> None:
    assert len(ours.layers) == len(theirs.layers)
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        assert one.has_attention is other.has_attention
        assert one.has_predictor is other.has_predictor
        assert other.hot.dtype == np.int32
        np.testing.assert_array_equal(one.hot, other.hot)
    for name in ("model_identity", "solver", "budget_bytes", "num_neurons", "has_output"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.predicted_s == theirs.predicted_s


@given(plan=plans())
def test_round_trip(plan: PlacementPlan) -> None:
    text = PLAN.to_json(plan)
    _assert_same(plan, PLAN.from_json(text, "file"))
    _assert_same(plan, PLAN.from_json(text.encode(), "file"))
    assert PLAN.to_json(PLAN.from_json(text, "file")) == text


def test_a_large_plan_stays_small() -> None:
    problem = model_shape(32, 4096, 11008, has_predictor=True, is_parallel=False)
    plan = get_solver("greedy").solve(problem)
    text = PLAN.to_json(plan)
    assert len(text) < 32 * (11008 / 8 * 4 / 3 + 60)
    _assert_same(plan, PLAN.from_json(text, "file"))


def _stored() -> dict[str, Any]:
    hot = np.array([0, 3, 9], np.int32)
    layers = (LayerPlacement(True, True, hot), LayerPlacement(False, False, hot[:0]))
    value: dict[str, Any] = json.loads(
        PLAN.to_json(PlacementPlan("identity", "latency", 1 << 30, 10, True, layers, 0.5))
    )
    return value


def _base64(*values: int) -> str:
    return base64.b64encode(bytes(values)).decode()


def test_bits_are_in_the_order_of_the_neurons() -> None:
    assert _stored()["layers"][0]["hot"] == _base64(0b1001, 0b10)


_NO_JSON: tuple[tuple[str | bytes, str], ...] = (
    ("", "not JSON"),
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("9" * 10_000, "not JSON"),
    (b"\xff\xfe{", "not JSON"),
    ("[]", "the file is not an object"),
    ("null", "the file is not an object"),
    ("{}", "the file has no field 'version'"),
)


@pytest.mark.parametrize(("text", "problem"), _NO_JSON)
def test_what_is_no_plan_at_all(text: str | bytes, problem: str) -> None:
    with pytest.raises(PlacementError, match=f"my.plan.json: the plan cannot be used: .*{problem}"):
        PLAN.from_json(text, "my.plan.json")


_DELETED = object()
_MISTAKES: tuple[tuple[str, object, str], ...] = (
    ("version", 2, "version is 2; this program reads version 1"),
    ("version", True, "version is not a whole number"),
    ("version", 1.0, "version is not a whole number"),
    ("model", 3, "model is not a text"),
    ("model", "x" * 300, "model is not a text of at most 200"),
    ("solver", None, "solver is not a text"),
    ("budget_bytes", -1, "budget_bytes is not a whole number from 0"),
    ("budget_bytes", 1 << 80, "budget_bytes is not a whole number from 0"),
    ("budget_bytes", "8", "budget_bytes is not a whole number"),
    ("num_neurons", 0, "num_neurons is not a whole number from 1"),
    ("num_neurons", 1 << 40, "num_neurons is not a whole number from 1"),
    ("num_neurons", 100, "layers[0].hot is not base64 of 13 bytes"),
    ("num_neurons", 9, "layers[0].hot names neurons beyond the 9"),
    ("has_output", 1, "has_output is neither true nor false"),
    ("predicted_s", "fast", "predicted_s is neither null nor"),
    ("predicted_s", -1, "predicted_s is neither null nor"),
    ("predicted_s", True, "predicted_s is neither null nor"),
    ("predicted_s", float("nan"), "predicted_s is neither null nor"),
    ("predicted_s", float("inf"), "predicted_s is neither null nor"),
    ("predicted_s", 10**400, "predicted_s is neither null nor"),
    ("predicted_s", _DELETED, "the file has no field 'predicted_s'"),
    ("extra", 1, "the file has an unknown field 'extra'"),
    ("layers", [], "layers is not a list of 1 to"),
    ("layers", {}, "layers is not a list of 1 to"),
    ("layers", [{}] * 5000, "layers is not a list of 1 to"),
    ("layers/1", 7, "layers[1] is not an object"),
    ("layers/1/hot", _DELETED, "layers[1] has no field 'hot'"),
    ("layers/0/cold", "", "layers[0] has an unknown field 'cold'"),
    ("layers/0/attention", "yes", "layers[0].attention is neither"),
    ("layers/0/attention", False, "layer 0 of the plan: a layer whose attention"),
    ("layers/1/predictor", True, "layer 1 of the plan: a layer whose attention"),
    ("layers/1/predictor", None, "layers[1].predictor is neither"),
    ("layers/0/hot", None, "layers[0].hot is not base64"),
    ("layers/0/hot", [0, 3], "layers[0].hot is not base64"),
    ("layers/0/hot", "", "layers[0].hot is not base64 of 2 bytes"),
    ("layers/0/hot", "A" * 400, "layers[0].hot is not base64 of 2 bytes"),
    ("layers/0/hot", "A===", "layers[0].hot is not base64"),
    ("layers/0/hot", "A\n==", "layers[0].hot is not base64"),
    ("layers/0/hot", "äöüß", "layers[0].hot is not base64"),
    ("layers/0/hot", "AAAA", "layers[0].hot is not base64 of 2 bytes"),
    ("layers/0/hot", _base64(0, 4), "layers[0].hot names neurons beyond the 10"),
)


@pytest.mark.parametrize(("path", "value", "problem"), _MISTAKES)
def test_an_error_names_the_field(path: str, value: object, problem: str) -> None:
    stored = _stored()
    *parents, last = path.split("/")
    at: Any = stored
    for key in parents:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if value is _DELETED:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    with pytest.raises(PlacementError) as caught:
        PLAN.from_json(json.dumps(stored), "my.plan.json")
    assert str(caught.value).startswith("my.plan.json: the plan cannot be used: ")
    assert problem in str(caught.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
_PLACES = st.sampled_from(
    [(key,) for key in _stored()]
    + [("layers", number) for number in range(2)]
    + [("layers", number, key) for number in range(2) for key in ("attention", "predictor", "hot")]
)


@given(place=_PLACES, value=_JSON)
def test_any_other_value_anywhere_loads_or_is_refused(place: tuple[Any, ...], value: Any) -> None:
    stored = _stored()
    at: Any = stored
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    _check_loads_or_is_refused(json.dumps(stored).encode())


@given(data=st.data())
def test_any_mutation_of_the_bytes_loads_or_is_refused(data: st.DataObject) -> None:
    text = bytearray(json.dumps(_stored()).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    _check_loads_or_is_refused(bytes(text))


@given(text=st.binary(max_size=60))
@example(text=b"\xef\xbb\xbf{}")
def test_any_bytes_are_refused(text: bytes) -> None:
    with pytest.raises(PlacementError):
        PLAN.from_json(text, "file")


def _check_loads_or_is_refused(text: bytes) -> None:
    try:
        plan = PLAN.from_json(text, "file")
    except PlacementError as error:
        assert str(error).startswith("file: ")
        return
    _assert_same(plan, PLAN.from_json(PLAN.to_json(plan), "again"))
