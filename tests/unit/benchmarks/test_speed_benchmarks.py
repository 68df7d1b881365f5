"""The scripts of benchmarks that measure speed: they time what their tables say."""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import powerinfer
from powerinfer.ops.head_ops import UNWANTED_LOGIT
from powerinfer.ops.protocol import WantedLogits
from powerinfer.store.default_model import find_model

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules as the scripts find them."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    yield
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_ways_of_reading_are_compared_while_decoding() -> None:
    calls: list[tuple[str, int]] = []
    sequence = SimpleNamespace(
        extend=lambda ids: calls.append(("prompt", len(ids))),
        append=lambda token: calls.append(("decode", token)),
    )
    llm = SimpleNamespace(new_sequence=lambda: sequence)
    assert import_module("prefetch_settings")._decode_s(llm, 3) >= 0
    assert calls == [("prompt", 8), ("decode", 100), ("decode", 101), ("decode", 102)]


def test_a_step_of_one_token_is_always_measured() -> None:
    """Tables quote it, whatever else was asked for."""
    step_rows = import_module("step_rows")
    options = Namespace(
        model=find_model(None),
        rows="4,2",
        rounds=1,
        steps=1,
        threads=1,
        kernels="portable",
        sparsity="off",
    )
    steps = step_rows.measure(options)["steps"]
    assert list(steps) == ["1", "2", "4"]
    assert all(step["ms"] > 0 for step in steps.values())


def test_a_screened_head_is_compared_with_the_whole_one() -> None:
    screened_head = import_module("screened_head")
    options = Namespace(
        model=find_model(None),
        text=Path(powerinfer.__file__).with_name("data") / "calibration.txt",
        format="f16",
        vocab=5000,
        columns=288,
        tokens=1,
        positions=40,
        minutes=None,
        threads=1,
        kernels=None,
    )
    found = screened_head.run(options)
    assert found["shape"] == (5000, 288)
    assert found["head"]["whole"]["rows_computed"] == 1
    assert 0 < found["head"]["greedy"]["rows_computed"] < 0.5
    assert (found["positions"], set(found["different"].values())) == (40, {0})
    # A wanted logit that is missing, and one with another bit.
    whole = np.arange(5, dtype=np.float32)[None]
    few = np.array([[UNWANTED_LOGIT] * 3 + [3, 4]], np.float32)
    for at, value, num_different in ((0, 0, 0), (3, UNWANTED_LOGIT, 1), (0, 0.5, 1)):
        found = few.copy()
        found[0, at] = value
        assert screened_head.num_different(whole, found, WantedLogits(2)) == num_different


class _Peer:
    """An engine that takes a second a token."""

    name, system_info, vocab_size = "peer", "", 1000

    def clear(self) -> None:
        """Nothing is kept."""

    def step(self, token_ids: list[int], position: int) -> float:
        """One second for each token."""
        assert position + len(token_ids) <= 1024
        return float(len(token_ids))


def test_a_peer_reports_the_tokens_it_computed(capsys: pytest.CaptureFixture[str]) -> None:
    procedure = import_module("procedure")
    procedure.measure(Namespace(seed=1, prefill=[8, 1024], decode=2), _Peer)
    found = json.loads(capsys.readouterr().out)
    assert found["prefill_tokens_per_s"] == {"8": 1.0, "1024": 1.0}
    assert found["decode_tokens_per_s"] == 1.0


@pytest.mark.parametrize(("prefill", "decode"), [([8, 1025], 1), ([], 1000)])
def test_a_peer_refuses_what_its_context_does_not_hold(prefill: list[int], decode: int) -> None:
    """It would compute fewer tokens and report all of them."""

    def load() -> Callable[[], None]:
        raise AssertionError("refused before anything is loaded")

    with pytest.raises(SystemExit, match="more than the context of 1024"):
        import_module("procedure").measure(Namespace(seed=1, prefill=prefill, decode=decode), load)


def _run_original(program: Path, report: str, status: int) -> subprocess.CompletedProcess[str]:
    """Time a program that stands in for the original PowerInfer's `main`."""
    program.write_text(
        f"#!/bin/sh\nprintf '\\332'\ncat >&2 <<'END'\n{report}\nEND\nexit {status}\n", "utf-8"
    )
    program.chmod(0o755)
    worker = BENCHMARKS / "peers" / "original_worker.py"
    command = [sys.executable, str(worker), "model.gguf", "--program", str(program)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_original_s_own_report_is_read(tmp_path: Path) -> None:
    report = (
        "llama_print_timings: prompt eval time =  10.00 ms / 33 tokens (0.3 ms per token, 3300.00 "
        "tokens per second)\n"
        "llama_print_timings:        eval time =  62.50 ms /  2 runs   (31.25 ms per token,    "
        "32.00 tokens per second)"
    )
    done = _run_original(tmp_path / "main", report, status=0)
    assert json.loads(done.stdout)["decode_tokens_per_s"] == 32.0


@pytest.mark.parametrize(("report", "status"), [("no times", 0), ("cannot load the model", 1)])
def test_an_original_that_reports_nothing_is_an_error(
    tmp_path: Path, report: str, status: int
) -> None:
    done = _run_original(tmp_path / "main", report, status)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert report in done.stderr


@pytest.mark.parametrize(
    ("cpu", "features", "name"),
    [
        ("Intel(R) Xeon(R) Processor", ["avx2", "avx512", "avx512_vnni"], "intel-xeon-avx512"),
        ("AMD Ryzen 7 5800X 8-Core Processor", ["avx2", "fma"], "amd-ryzen-7-5800x-avx2"),
        ("Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz", ["avx2"], "intel-core-i7-8550u-avx2"),
        ("aarch64", [], "aarch64"),
    ],
)
def test_results_lie_in_a_folder_named_after_the_machine(
    monkeypatch: pytest.MonkeyPatch, cpu: str, features: list[str], name: str
) -> None:
    module = import_module("machine_name")
    monkeypatch.setattr(module, "describe_machine", lambda: {"cpu": cpu})
    monkeypatch.setattr(module, "_core", SimpleNamespace(cpu_features=lambda: features))
    assert module.machine_name() == name
