"""Predictor kinds from outside the package: what may be registered, and what is said otherwise."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import assert_error, invoke, run_json
from patience import PATIENCE_S
from powerinfer import LLM, SamplingParams, UnsupportedError
from powerinfer.ops.backend import Backend
from powerinfer.predictors import (
    ActiveIds,
    LayerSource,
    PredictorInput,
    PredictorKind,
    ScorePart,
    Scorer,
    get_kind,
    kind_names,
    outside,
    packaged_kind_names,
    parse_kind,
    register,
)
from powerinfer.values import BoolArray, FloatArray
from tiny_models import TINY_MODELS, write_model

RUN = ("-p", "the fox", "-n", "4", "--temp", "0", "--ignore-eos")
MODULE = """
from powerinfer.predictors import PredictorInput, PredictorKind, ScorePart, Scorer

def scorer(ops, source, variant):
    parts = tuple(ScorePart(ops.recode(part.matrix, variant)) for part in source.deciding)
    return Scorer(PredictorInput.FFN_INPUT, parts)

KIND = PredictorKind(
    name="copied",
    summary="a copy of the gate",
    variants=("q8_0", "q4_0"),
    scorer=scorer,
    cascade_bits={"q8_0": 9, "q4_0": 5},
)
"""


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(outside, "_registered", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _forget()
    yield
    _forget()
    for name in [name for name in sys.modules if name.startswith("kinds_of_")]:
        del sys.modules[name]


def _forget() -> None:
    outside._announced.cache_clear()
    outside._load.cache_clear()


Announce = Callable[..., None]


@pytest.fixture
def announce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Announce:
    """Make an installed distribution that announces a kind."""

    def make(distribution: str, code: str, *, name: str = "copied", value: str = "KIND") -> None:
        folder = tmp_path / distribution
        info = folder / f"{distribution}-1.2.dist-info"
        info.mkdir(parents=True)
        (folder / f"kinds_of_{distribution}.py").write_text(code)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n"
        )
        (info / "entry_points.txt").write_text(
            f"[powerinfer.predictors]\n{name} = kinds_of_{distribution}:{value}\n"
        )
        monkeypatch.syspath_prepend(folder)

    return make


@pytest.fixture
def model(tmp_path: Path) -> Path:
    recipe = replace(TINY_MODELS["llama-relu"], is_down_transposed=True)
    return write_model(tmp_path / "relu.gguf", recipe)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the old fox saw a red hen run over the hill and sat down to think. " * 10)
    return path


def _kind(name: str = "mine", **changes: object) -> PredictorKind:
    kind = PredictorKind(name=name, summary="a test", scorer=_scorer, cascade_bits={"": 8})
    return replace(kind, **changes)  # type: ignore[arg-type]


def _scorer(ops: Backend, source: LayerSource, _variant: str) -> Scorer:
    parts = tuple(ScorePart(ops.recode(part.matrix, "q8_0")) for part in source.deciding)
    return Scorer(PredictorInput.FFN_INPUT, parts)


def test_an_announced_kind_runs_and_is_calibrated(
    announce: Announce, model: Path, text: Path
) -> None:
    announce("strangers", MODULE)
    ran = run_json("run", "-m", model, *RUN, "--sparsity", "copied")
    assert ran["layer_kinds"] == ["copied:q8_0"] * 2
    with LLM(model, sparsity="copied:q4_0") as llm:
        assert llm.loaded.model.layer_kinds == ("copied:q4_0",) * 2
        assert len(llm.generate("the", SamplingParams(max_tokens=2, ignore_eos=True))) == 1
    measuring = ("calibrate", "-m", model, "-f", text, "--max-ffn-error", "0.3")
    report = run_json(*measuring, "--kinds", "copied,lowbit:2+copied:q4_0")
    measured = [kind["kind"] for kind in report["kinds"]]
    assert measured == ["copied:q8_0", "lowbit:2+copied:q4_0"]
    chosen = [layer["kind"] for layer in report["layers"]]
    assert run_json("run", "-m", model, *RUN)["layer_kinds"] == chosen
    assert set(chosen) <= {*measured, "exact"}
    # What a calibration measures by itself does not depend on what is installed.
    by_default = [kind["kind"] for kind in run_json(*measuring)["kinds"]]
    assert by_default
    assert not any("copied" in kind for kind in by_default)


def test_a_kind_whose_package_was_removed_stops_nobody_else(
    announce: Announce, model: Path, text: Path, tmp_path: Path
) -> None:
    announce("strangers", MODULE)
    measuring = ("calibrate", "-m", model, "-f", text, "--kinds")
    stored = Path(str(run_json(*measuring, "copied,lowbit:4", "--max-ffn-error", "0.5")["path"]))
    calibration = json.loads(stored.read_text())
    for layer in calibration["layers"]:
        (point, *_) = layer["curves"]["lowbit:4"]
        layer["choice"] = {"kind": "lowbit:4", "thresholds": point["thresholds"]}
    stored.write_text(json.dumps(calibration))
    shutil.rmtree(tmp_path / "strangers")
    sys.modules.pop("kinds_of_strangers", None)
    _forget()
    assert run_json("run", "-m", model, *RUN)["layer_kinds"] == ["lowbit:4"] * 2
    # What was chosen is needed, but only where the calibration is to run.
    for layer in calibration["layers"]:
        (point, *_) = layer["curves"]["copied:q8_0"]
        layer["choice"] = {"kind": "copied:q8_0", "thresholds": point["thresholds"]}
    stored.write_text(json.dumps(calibration))
    said = "its calibration chose the predictor kind 'copied:q8_0', which cannot run: no installed"
    assert_error(invoke("run", "-m", model, *RUN), said, "provides the kind 'copied'")
    forced = ("--sparsity", "lowbit:4")
    assert run_json("run", "-m", model, *RUN, *forced)["layer_kinds"] == ["lowbit:4"] * 2
    ran = run_json("run", "-m", model, *RUN, "--max-ffn-error", "0.4")
    assert set(ran["layer_kinds"]) <= {"lowbit:4", "exact"}


def test_an_announced_kind_is_listed_and_found(announce: Announce) -> None:
    announce("strangers", MODULE)
    assert kind_names() == (*packaged_kind_names(), "copied:q8_0", "copied:q4_0")
    assert get_kind("copied") is parse_kind("COPIED")[0].kind
    with pytest.raises(UnsupportedError, match=r"Did you mean 'copied:q8_0'\?"):
        parse_kind("copied:q8")


def test_nobody_looks_for_kinds_that_the_package_has() -> None:
    code = (
        "import sys; from powerinfer.predictors import parse_kind; "
        "parse_kind('sign+lowbit:2'); parse_kind('exact'); "
        "assert 'importlib.metadata' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("code", "value", "said"),
    [
        ("import a_library_that_is_missing", "KIND", "cannot be imported: ModuleNotFoundError"),
        ("raise ValueError('first\\nsecond')", "KIND", "ValueError: first second"),
        ("OTHER = 1", "KIND", "cannot be imported: AttributeError"),
        ("KIND = 'copied'", "KIND", "is a str, expected a PredictorKind"),
        (MODULE.replace('name="copied"', 'name="other"'), "KIND", "calls itself 'other'"),
        (MODULE.replace("scorer=scorer,", ""), "KIND", "either a scorer or active_ids"),
    ],
)
def test_a_broken_distribution_is_named(
    announce: Announce, model: Path, code: str, value: str, said: str
) -> None:
    announce("strangers", code, value=value)
    result = invoke("run", "-m", model, *RUN, "--sparsity", "copied")
    assert_error(result, "predictor kind 'copied' of strangers 1.2: ", said)
    # It stops nobody who asks for something else.
    assert invoke("run", "-m", model, *RUN, "--sparsity", "sign").exit_code == 0


def test_two_distributions_with_one_name(announce: Announce, model: Path) -> None:
    announce("strangers", MODULE)
    announce("others", MODULE)
    said = "'copied' is announced by others 1.2 and strangers 1.2: uninstall all but one"
    assert_error(invoke("run", "-m", model, *RUN, "--sparsity", "copied"), said)


def test_a_distribution_that_takes_a_name_of_the_package(
    announce: Announce, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    announce("strangers", MODULE.replace('name="copied"', 'name="sign"'), name="sign")
    assert invoke("run", "-m", model, *RUN, "--sparsity", "sign").exit_code == 0
    assert not caplog.records
    assert kind_names() == packaged_kind_names()
    (warning,) = caplog.messages
    assert warning == (
        "predictor kind 'sign' of strangers 1.2: the name 'sign' is taken by the package; choose "
        "another one"
    )


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (_kind("Mine"), "'Mine' is not a valid name"),
        (_kind("a+b"), "is not a valid name"),
        (_kind("_mine"), "is not a valid name"),
        (_kind("lowbit"), "taken by the package"),
        (_kind("off"), "taken by the package"),
        (_kind(scorer=None), "either a scorer or active_ids"),
        (_kind(active_ids=_scorer), "either a scorer or active_ids"),
        (_kind(variants=("a:b",)), "'a:b' is not a valid variant"),
        (_kind(variants=("a",)), "cascade_bits of kind 'mine' names unknown variants"),
        (_kind(scorer=None, active_ids=_scorer), "cannot be part of a cascade"),
    ],
)
def test_what_cannot_be_registered(kind: PredictorKind, said: str) -> None:
    with pytest.raises(UnsupportedError, match=r"^register: ") as caught:
        register(kind)
    assert said in str(caught.value)
    assert kind_names() == packaged_kind_names()


def test_only_kinds_can_be_registered() -> None:
    with pytest.raises(UnsupportedError, match="register: got a str, expected a PredictorKind"):
        register("mine")  # type: ignore[arg-type]


def test_a_spelling_mistake_imports_nothing(announce: Announce) -> None:
    announce("strangers", "raise SystemExit('imported')")
    register(_kind())
    for ask in (get_kind, parse_kind):
        with pytest.raises(UnsupportedError, match=r"Did you mean 'copied'\?") as caught:
            ask("copyed")
        assert ", mine, copied" in str(caught.value)
    with pytest.raises(UnsupportedError, match=r"auto is not a predictor kind; .* copied"):
        parse_kind("auto+sign")


def test_messages_about_cascades_name_the_kinds_there_are(announce: Announce) -> None:
    announce("strangers", MODULE)
    packaged = "from cheap to precise, these can: sign, lowbit:2, lowbit:3, lowbit:4"
    with pytest.raises(UnsupportedError, match=f"oracle cannot be part .* {packaged}$"):
        parse_kind("sign+oracle")
    register(_kind(cascade_bits={"": 8}))
    with pytest.raises(UnsupportedError, match=f"{packaged}, mine$"):
        parse_kind("sign+oracle")
    with pytest.raises(UnsupportedError, match=r"precise: .* lowbit:4, copied:q4_0, mine, copied"):
        parse_kind("copied:q8_0+mine")


def test_a_name_is_registered_once() -> None:
    first, second = _kind(), _kind()
    register(first)
    register(first)
    with pytest.raises(UnsupportedError, match="'mine' is registered already"):
        register(second)
    assert get_kind("mine") is first
    register(second, replace=True)
    assert get_kind("mine") is second


def test_a_kind_that_lists_neurons_has_no_dial(model: Path) -> None:
    asked: list[int] = []

    def first_half(_ops: Backend, source: LayerSource, _variant: str) -> object:
        def active_ids(x: FloatArray, _is_prompt: BoolArray | None) -> ActiveIds:
            asked.append(source.number)
            mask = np.zeros((len(x), 48), bool)
            mask[:, :24] = True
            return ActiveIds.of_mask(mask)

        return active_ids

    register(_kind("half", scorer=None, active_ids=first_half, cascade_bits={}))
    with LLM(model, sparsity="half") as llm:
        metrics = llm.generate("the", SamplingParams(max_tokens=3, ignore_eos=True))[0].metrics
        assert llm.loaded.sparsity.summary == "half: a test"
    assert metrics.predicted_share == 0.5
    assert set(asked) == {0, 1}
    with pytest.raises(UnsupportedError, match="sparsity half has no threshold"):
        LLM(model, sparsity="half", recall=0.9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input": PredictorInput.RESIDUAL}, "must share one input"),
        ({"center": "mean"}, "must subtract the same center"),
        ({"fc1": "up"}, "a kind with a hidden layer cannot be part of a cascade"),
    ],
)
def test_parts_that_do_not_go_together(
    model: Path, text: Path, change: dict[str, object], said: str
) -> None:
    def scorer(ops: Backend, source: LayerSource, variant: str) -> Scorer:
        values = {"mean": source.mean + 1, "up": source.ffn.up.matrix}
        made = {key: values.get(str(value), value) for key, value in change.items()}
        return replace(_scorer(ops, source, variant), **made)  # type: ignore[arg-type]

    register(_kind(scorer=scorer))
    with pytest.raises(UnsupportedError, match=said):
        LLM(model, sparsity="sign+mine")
    calibrating = invoke("calibrate", "-m", model, "-f", text, "--kinds", "sign+mine")
    assert_error(calibrating, said)
