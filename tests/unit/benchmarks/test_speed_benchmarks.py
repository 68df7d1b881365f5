"""The scripts of benchmarks that measure speed: they time what their tables say."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

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
