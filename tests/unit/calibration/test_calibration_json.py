"""The JSON of a calibration: round trips, and one clear error for anything else."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.calibration.calibrate import calibrate
from powerinfer.calibration.text import CalibrationText
from powerinfer.errors import CalibrationError
from powerinfer.gguf import open_gguf
from powerinfer.models import load_model
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.predictors.calibration import Calibration, Dial
from powerinfer.predictors.calibration_json import CALIBRATION
from powerinfer.predictors.choosing import choose_for_model
from tiny_models import TINY_MODELS, write_model

IDENTITY = "0123456789abcdef" * 4
DIAL = Dial(max_ffn_error=0.05)
TEXT = CalibrationText("random", np.random.default_rng(0).integers(3, 280, (4, 24), np.int32))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    path = write_model(tmp_path_factory.mktemp("model") / "m.gguf", TINY_MODELS["bamboo"])
    model = load_model(open_gguf(path), ReferenceOps())
    return calibrate(model, TEXT, identity=IDENTITY, dial=DIAL, kinds=("lowbit:2", "mlp"))


def test_round_trip(stored: Calibration) -> None:
    again = CALIBRATION.from_json(CALIBRATION.to_json(stored), "file")
    assert CALIBRATION.to_json(again) == CALIBRATION.to_json(stored)
    assert again.choices == stored.choices
    for ours, theirs in zip(stored.layers, again.layers, strict=True):
        assert dict(ours.curves) == dict(theirs.curves)
        np.testing.assert_array_equal(ours.num_active, theirs.num_active)
        np.testing.assert_array_equal(ours.mean, theirs.mean)
        assert ours.chosen_point == theirs.chosen_point
    assert choose_for_model(again, DIAL).choices == stored.choices


_NO_JSON = (
    ("", "not JSON"),
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("[]", "the file is not an object"),
)

_POINT = "layers/1/curves/lowbit:2/0"
_MISTAKES: tuple[tuple[str, object, str], ...] = (
    ("version", 2, "version is 2"),
    ("version", None, "no field 'version'"),
    ("version", True, "version is not a whole number"),
    ("layers", [], "layers is empty"),
    ("layers", {}, "layers is not a list"),
    ("model", 3, "model is not a text"),
    ("text/tokens", 0, "text.tokens is not a whole number from 1"),
    ("text/tokens", 1.5, "text.tokens is not a whole number"),
    ("dial", {}, "dial must have either"),
    ("dial", {"recall": 1, "max_ffn_error": 1}, "dial must have either"),
    ("dial", {"recall": 2}, "dial.recall must be"),
    ("layers/0/active/0", -1, r"layers[0].active must hold"),
    ("layers/0/active/0", 10**6, r"layers[0].active must hold"),
    ("layers/0/active/0", 0.5, r"layers[0].active must hold whole"),
    ("layers/0/active/0", "1", r"layers[0].active holds something"),
    ("layers/0/active", [], r"layers[0].active is not a list of numbers"),
    ("layers/0/mean/3", float("nan"), r"layers[0].mean holds something"),
    ("layers/0/mean/3", float("inf"), r"layers[0].mean holds something"),
    ("layers/0/mean/3", 10**400, r"layers[0].mean holds something"),
    ("layers/0/mean/3", True, r"layers[0].mean holds something"),
    ("layers/0/variance/3", -1, r"layers[0].variance must hold"),
    ("layers/0/variance/3", None, r"layers[0].variance has 31 numbers, mean has 32"),
    ("layers/1/choice", None, "layers[1] has no field 'choice'"),
    ("layers/1/choice/kind", "Magic!", r"layers[1].choice.kind is not a predictor"),
    ("layers/1/choice/kind", "oracle", r"choice.kind is oracle, which a calibration cannot choose"),
    ("layers/1/choice/kind", "sign+sign", r"choice.kind is not a predictor kind"),
    ("layers/1/choice/kind", "+".join(["sign"] * 20000), r"choice.kind is not a predictor kind"),
    ("layers/1/curves/oracle", [], "which a calibration cannot choose"),
    ("layers/1/choice/thresholds", [1, 2, 3], r"layers[1].choice.thresholds has 3"),
    ("layers/1/curves/Magic!", [], "is not a predictor kind"),
    (f"{_POINT}/density", 1.5, "lowbit:2[0].density must be"),
    (f"{_POINT}/recall", "x", "lowbit:2[0].recall is not a number"),
    (f"{_POINT}/ffn_error", float("nan"), "lowbit:2[0].ffn_error must be a finite"),
    (f"{_POINT}/thresholds", [float("-inf")], "thresholds[0] must be a finite"),
    (f"{_POINT}/thresholds", [1e39], "thresholds[0] must be a finite"),
    (f"{_POINT}/time", None, "has no field 'time'"),
)
"""Place of a field, what is put there (None removes it), and what the message must name."""


def _changed(text: str, place: str, new: object) -> str:
    value = json.loads(text)
    *parents, last = [int(part) if part.isdigit() else part for part in place.split("/")]
    inner = value
    for part in parents:
        inner = inner[part]
    if new is None:
        del inner[last]
    else:
        inner[last] = new
    return json.dumps(value)


def test_damaged_files_name_the_field(stored: Calibration) -> None:
    whole = CALIBRATION.to_json(stored)
    cases = [(_changed(whole, place, new), message) for place, new, message in _MISTAKES]
    for text, message in (*cases, *_NO_JSON):
        with pytest.raises(CalibrationError) as error:
            CALIBRATION.from_json(text, "m.calibration.json")
        assert message in str(error.value), text[:80]
        assert len(str(error.value)) < 600
        assert str(error.value).startswith("m.calibration.json: the calibration cannot be used: ")
        assert "run `powerinfer calibrate` again" in str(error.value)


def test_curves_of_kinds_that_are_not_installed_are_left_out(stored: Calibration) -> None:
    whole = CALIBRATION.to_json(stored)
    for name in ("magic", "sign+magic", "magic:4"):
        text = _changed(whole, f"layers/1/curves/{name}", [{"made": "by a later version"}])
        assert CALIBRATION.to_json(CALIBRATION.from_json(text, "file")) == whole
    with pytest.raises(CalibrationError, match=r"lowbit:9' is not supported.*lowbit:2; remove it"):
        CALIBRATION.from_json(_changed(whole, "layers/1/curves/lowbit:9", []), "file")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(data=st.data())
def test_whatever_replaces_a_part_is_read_or_refused(data: st.DataObject) -> None:
    """Any field, at any depth, may hold anything: never another error than ours."""
    value: Any = json.loads(_SMALL)
    inner: Any = value
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = data.draw(st.sampled_from(keys))
        child = inner[key]
        if not isinstance(child, dict | list) or not child or data.draw(st.booleans()):
            inner[key] = data.draw(_JSON)
            break
        inner = child
    try:
        CALIBRATION.from_json(json.dumps(value), "f")
    except CalibrationError as error:
        assert str(error).startswith("f: ")


@given(st.binary(max_size=40))
def test_any_bytes_are_refused(junk: bytes) -> None:
    with pytest.raises(CalibrationError, match=r"^f: "):
        CALIBRATION.from_json(junk, "f")


_SMALL = json.dumps(
    {
        "version": 1,
        "model": IDENTITY,
        "activation": "relu",
        "text": {"name": "t", "tokens": 9},
        "dial": {"max_ffn_error": 0.01},
        "layers": [
            {
                "active": [0, 9, 3],
                "mean": [0.5, -1],
                "variance": [1, 0.25],
                "curves": {
                    "sign+lowbit:2": [
                        {
                            "thresholds": [-1.5, 0],
                            "density": 0.5,
                            "recall": 1,
                            "precision": 0.25,
                            "ffn_error": 0,
                            "time": 0.75,
                            "ffn_error_high": 0.125,
                        }
                    ]
                },
                "choice": {"kind": "sign+lowbit:2", "thresholds": [-1.5, 0]},
            }
        ],
    }
)


def test_files_from_before_limits_get_cautious_ones() -> None:
    value = json.loads(_SMALL)
    point = value["layers"][0]["curves"]["sign+lowbit:2"][0]
    del point["ffn_error_high"]
    point["ffn_error"] = 0.5
    curves = CALIBRATION.from_json(json.dumps(value), "f").layers[0].curves
    assert curves["sign+lowbit:2"][0].ffn_error_high == 0.75


def test_the_small_file_is_valid() -> None:
    calibration = CALIBRATION.from_json(_SMALL, "f")
    assert calibration.layers[0].chosen_point is not None
    assert calibration.layers[0].hot_share() == 2 / 3
    assert json.loads(CALIBRATION.to_json(calibration)) == json.loads(_SMALL)
