"""`bench --quality --tasks -o`: figures of `eval`, and rows that survive an early end."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import assert_error, invoke, run_json
from powerinfer import LLM
from powerinfer.bench.quality import DecodeTimer
from powerinfer.cli.report.quality_results import load_results, save_results
from powerinfer.errors import MeasurementError
from tiny_models import TINY_MODELS, write_model

HAS_LM_EVAL = importlib.util.find_spec("lm_eval") is not None
needs_lm_eval = pytest.mark.needs("lm_eval")

TEXT = "the quick brown fox jumps over the lazy dog while the old man tells a long story " * 8
QUERIES = ["the quick", "brown fox", "jumps over", "the lazy dog", "tells a", "long story"]
SIZES = ("-c", "64", "--windows", "2", "--decode", "1", "--repeats", "1")
SETTINGS = ("--settings", "exact,default,lowbit:2,sign")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "bamboo.gguf", TINY_MODELS["bamboo"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    rows = [
        {"query": f"{QUERIES[i % 6]} {QUERIES[i % 5]}", "choices": QUERIES[:3], "gold": i % 2}
        for i in range(12)
    ]
    (folder / "piqa.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ends = [{"context": each, "continuation": "fox"} for each in QUERIES]
    (folder / "next.jsonl").write_text("\n".join(map(json.dumps, ends)))
    (folder / "text.txt").write_text(TEXT)
    return folder


@pytest.fixture(scope="module")
def common(model: Path, folder: Path) -> tuple[str | Path, ...]:
    tasks = ("--tasks", f"piqa,{folder}/next.jsonl", "--data", folder)
    return ("bench", "--quality", "-m", model, "-f", folder / "text.txt", *SIZES, *tasks)


def _without_times(row: dict[str, Any]) -> dict[str, Any]:
    times = ("decode_tokens_per_s", "speedup", "speedup_range", "gb_per_s")
    return {
        name: value
        for name, value in row.items()
        if name not in (*times, "decode_s", "dense_decode_s")
    }


@needs_lm_eval
def test_figures_are_those_of_eval(
    common: tuple[str | Path, ...], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from powerinfer.evaluation import harness

    asked_models, real = [], harness.ask_all

    def ask_all(llm: LLM, *arguments: Any) -> Any:
        asked_models.append(llm.loaded.model.sparsity)
        return real(llm, *arguments)

    monkeypatch.setattr(harness, "ask_all", ask_all)
    report = run_json(*common, *SETTINGS)
    assert report["is_complete"] is True
    # Answers of this model hardly depend on its FFNs.
    assert asked_models == ["off", "exact", "mlp", "lowbit:2", "sign"]
    asked = ("eval", "-m", model, "-c", "64", *common[common.index("--tasks") :], *SETTINGS)
    expected = run_json(*asked)
    assert report["lm_eval"] == expected["lm_eval"]
    assert [row["setting"] for row in report["rows"]] == list(expected["sparsity"])
    for row in report["rows"]:
        found = {name: settings[row["setting"]] for name, settings in expected["tasks"].items()}
        assert row["tasks"] == found


@needs_lm_eval
def test_tables_show_accuracies(common: tuple[str | Path, ...], folder: Path) -> None:
    result = invoke(*common, "--settings", "default", "--limit", "3")
    assert result.exit_code == 0, result.output
    head, dense, sparse, *_ = result.stdout.splitlines()
    assert head.split()[-2:] == ["piqa", "next"]
    assert dense.split()[0] == "off"
    assert dense.split()[-1] == sparse.split()[-1] == "%"
    assert f"piqa: 3 items of {folder / 'piqa.jsonl'}" in result.stdout.splitlines()
    assert "  default: mlp " in result.stdout
    assert "paired" in result.stderr


@pytest.fixture(scope="module")
def expected(common: tuple[str | Path, ...]) -> list[dict[str, Any]]:
    """Rows of a run that nothing disturbs."""
    rows: list[dict[str, Any]] = run_json(*common, *SETTINGS)["rows"]
    return rows


@needs_lm_eval
def test_ctrl_c_before_the_first_setting_says_that_nothing_was_kept(
    common: tuple[str | Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("powerinfer.cli.report.quality._measure", interrupted)
    result = invoke(*common, *SETTINGS)
    assert result.exit_code == 130
    assert "stopped; nothing was kept: the same command begins again" in result.stderr


@needs_lm_eval
@pytest.mark.parametrize(("stops_after", "is_json"), [(1, False), (2, True), (4, False)])
def test_rows_survive_ctrl_c_and_are_not_measured_again(
    common: tuple[str | Path, ...],
    expected: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stops_after: int,
    is_json: bool,
) -> None:
    output = tmp_path / "table.json"
    arguments = (*common, *SETTINGS, "-o", output)
    real = DecodeTimer.beside_dense
    count = 0

    def interrupted(timer: DecodeTimer, llm: Any) -> Any:
        nonlocal count
        count += 1
        if count == stops_after:
            raise KeyboardInterrupt
        return real(timer, llm)

    monkeypatch.setattr(DecodeTimer, "beside_dense", interrupted)
    result = invoke(*arguments, *(["--json"] if is_json else []))
    assert result.exit_code == 130
    assert f"kept in {output}: the same command resumes" in " ".join(result.stderr.split())
    names = [row["setting"] for row in expected[:stops_after]]
    if is_json:
        report = json.loads(result.stdout)
        assert report["is_complete"] is False
        assert [row["setting"] for row in report["rows"]] == names
    else:
        lines = result.stdout.splitlines()[1 : 1 + len(names)]
        assert [line.split()[0].removesuffix(":") for line in lines] == names
    kept = load_results(output)
    assert kept.names == names
    monkeypatch.setattr(DecodeTimer, "beside_dense", real)
    monkeypatch.setattr(DecodeTimer, "dense", None)
    rows = run_json(*arguments)["rows"]
    assert [*map(_without_times, rows)] == [*map(_without_times, expected)]
    assert [each.row for each in load_results(output).settings[: len(names)]] == [
        each.row for each in kept.settings
    ]


@needs_lm_eval
def test_more_settings_join_a_file(common: tuple[str | Path, ...], tmp_path: Path) -> None:
    output = tmp_path / "table.json"
    run_json(*common, "--settings", "exact", "-o", output)
    report = run_json(*common, "--settings", "sign", "--errors", "default", "-o", output)
    names = ["off", "exact", "sign @ default"]
    assert [row["setting"] for row in report["rows"]] == names
    stored = json.loads(output.read_text())
    assert [_without_times(row) for row in report["rows"]] == [
        {name: value for name, value in _without_times(row).items() if name != "answers"}
        for row in stored["rows"]
    ]


def test_a_file_of_something_else_is_left_alone(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "table.json"
    text = folder / "text.txt"
    common = ("bench", "--quality", *SIZES, "--settings", "exact", "-o", output)
    assert invoke(*common, "-m", model, "-f", text).exit_code == 0
    before = output.read_bytes()
    other_model = write_model(tmp_path / "other.gguf", TINY_MODELS["llama-relu"])
    other_text = tmp_path / "other.txt"
    other_text.write_text(TEXT[4:])
    monkeypatch.setattr("powerinfer.cli.report.quality._measure", None)
    for what, arguments in (
        ("another model", ("-m", other_model, "-f", text)),
        ("another text", ("-m", model, "-f", other_text)),
        ("another plan", ("-m", model, "-f", text, "--windows", "1")),
        ("another set of options", ("-m", model, "-f", text, "-t", "1")),
    ):
        assert_error(invoke(*common, *arguments), str(output), what, "-o")
    run_json("calibrate", "-m", model, "-f", text, "--tokens", "64")
    try:
        assert_error(invoke(*common, "-m", model, "-f", text), "another calibration")
    finally:
        model.with_name("bamboo.gguf.calibration.json").unlink()
    assert output.read_bytes() == before
    for content in (b"", b"{}", b"[1]", b'{"version": 2}', before[:-9], b"\xff"):
        output.write_bytes(content)
        assert_error(invoke(*common, "-m", model, "-f", text), str(output), "another file with -o")
        assert output.read_bytes() == content


def test_what_a_setting_lacks_ends_it_with_the_rows_before(folder: Path, tmp_path: Path) -> None:
    plain = write_model(tmp_path / "relu.gguf", TINY_MODELS["llama-relu"])
    common = ("bench", "--quality", "-m", plain, "-f", folder / "text.txt", *SIZES)
    result = invoke(*common, "--settings", "exact,mlp")
    assert_error(result, "blk.0.fc1.weight")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["off", "exact"]
    assert "note: 2 settings were measured; -o FILE would have kept" in result.stderr


def test_faults_are_found_before_a_model_is_loaded(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerinfer.cli.report.quality._measure", None)
    common = ("bench", "--quality", "-m", model, "-f", folder / "text.txt")
    for arguments, *parts in (
        (("--tasks", "piqqa", "--data", folder), "task 'piqqa'", "Did you mean 'piqa'"),
        (("--tasks", "piqa"), "--data"),
        (("--tasks", "copa", "--data", folder), "has no copa.jsonl"),
        (("--tasks", "piqa", "--data", tmp_path / "none"), "no such folder"),
        (("--tasks", tmp_path / "none.jsonl"), "none.jsonl"),
        (("--tasks", folder / "text.txt.jsonl"), "text.txt.jsonl"),
        (("-o", "/proc/table.json"), "cannot write there"),
    ):
        assert_error(invoke(*common, *arguments), *parts)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "lm_eval" else find(name)
    )
    result = invoke(*common, "--tasks", folder / "next.jsonl")
    assert_error(result, "--tasks needs lm-eval, which is not installed", "the extra eval")


def test_only_quality_asks_tasks(model: Path, folder: Path) -> None:
    for flags in (("--tasks", "piqa"), ("--data", folder), ("--limit", "1"), ("-o", "x.json")):
        assert_error(invoke("bench", "-m", model, *flags), "give --quality too")


@pytest.fixture(scope="module")
def stored(common: tuple[str | Path, ...], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("stored") / "table.json"
    tasks = common.index("--tasks")
    arguments = common if HAS_LM_EVAL else common[:tasks]
    assert invoke(*arguments, "--settings", "exact,default", "-o", path).exit_code == 0
    return path.read_bytes()


def test_a_file_is_read_as_it_was_written(stored: bytes, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(stored)
    results = load_results(path)
    save_results(path, results)
    assert path.read_bytes() == stored


_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
_leaves = _values | st.lists(_values, max_size=2) | st.dictionaries(st.text(max_size=2), _values)


@given(data=st.data())
def test_damaged_files_are_refused_or_read(
    stored: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A value somewhere inside is another one, or bytes are."""
    path = tmp_path_factory.mktemp("damaged") / "table.json"
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(stored)))
        path.write_bytes(stored[:at] + data.draw(st.binary(max_size=4)) + stored[at + 2 :])
    else:
        content = json.loads(stored)
        place: Any = content
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or not place[key]:
                break
            if data.draw(st.integers(0, 4)) == 0:
                break
            place = place[key]
        place[key] = data.draw(_leaves)
        path.write_text(json.dumps(content))
    try:
        load_results(path).rows_as_json()
    except MeasurementError as error:
        assert str(path) in str(error)
