"""Ways of reading weights: which one is chosen, for which models, where that is kept."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.cli.cached_files import cached_files
from powerinfer.gguf import GGUFFile
from powerinfer.loading import loader, reading_speeds
from powerinfer.loading.reading_speeds import (
    PREFETCH_SETTINGS,
    prefetch_settings_name,
    stored_prefetch_settings,
    use_measured_settings,
)
from powerinfer.offload import place as offload_place
from powerinfer.offload.devices import Device
from powerinfer.ops.cpu import prefetch_speed
from powerinfer.ops.cpu.machine import read_kind
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.cpu.prefetch_settings import (
    PlainReadSettings,
    PrefetchSettings,
    choose,
    is_steady,
)
from powerinfer.options.options import engine_options
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.store import measurements

FAST = PrefetchSettings(ahead=512, chunk_bytes=1 << 20, gather_ahead=8192, add_ahead=4096)


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        pytest.param({"usual": [1.0] * 5, "other": [0.5] * 5}, "other", id="clearly faster"),
        pytest.param({"usual": [1.0] * 5, "other": [0.98] * 5}, "usual", id="within the margin"),
        pytest.param({"usual": [1.0] * 5, "other": [1.0] * 5}, "usual", id="tie"),
        pytest.param({"usual": [1.0] * 5}, "usual", id="alone"),
        pytest.param(
            {"usual": [1.0] * 5, "other": [0.9] * 5, "third": [0.8] * 5}, "third", id="the best"
        ),
        pytest.param(
            {"usual": [1.0] * 5, "other": [0.8] * 5, "third": [0.8] * 5}, "other", id="first of two"
        ),
        # The machine became slower during the second half, for both.
        pytest.param(
            {"usual": [1.0, 1.0, 2.0, 2.0], "other": [0.9, 0.9, 1.8, 1.8]}, "other", id="drift"
        ),
        pytest.param(
            {"usual": [1.0, 1.0, 1.0, 9.0, 9.0], "other": [1.0, 1.1, 1.0, 1.0, 1.0]},
            "usual",
            id="faster while another was disturbed",
        ),
        pytest.param(
            {"usual": [1.0] * 5, "other": [0.5, 0.5, 0.5, 1.1, 1.2]}, "usual", id="not always"
        ),
    ],
)
def test_only_what_is_clearly_faster_replaces_the_default(
    seconds: dict[str, list[float]], chosen: str
) -> None:
    assert choose(seconds, "usual") == chosen


@given(
    st.lists(st.floats(0.99, 1.01), min_size=5, max_size=5),
    st.lists(st.floats(0.99, 1.01), min_size=5, max_size=5),
)
def test_noise_of_a_hundredth_never_replaces_the_default(
    usual: list[float], other: list[float]
) -> None:
    assert choose({"usual": usual, "other": other}, "usual") == "usual"


def test_a_machine_is_steady_when_all_but_one_say_the_same() -> None:
    assert is_steady([1.0, 1.1, 1.2, 1.0])
    assert is_steady([1.0, 1.1, 1.2, 9.0])
    assert not is_steady([1.0, 1.1, 1.5, 9.0])
    assert not is_steady([1.0, 2.0])


def test_ways_have_names() -> None:
    assert str(PlainReadSettings()) == "no prefetch, chunks of 2 MiB"
    assert str(PlainReadSettings(2048, 256 << 10, 4)) == (
        "prefetch 2048 bytes ahead, chunks of 256 KiB, 4 streams a thread"
    )
    assert str(FAST) == (
        "prefetch 512 bytes ahead, chunks of 1 MiB, scattered rows 8 KiB ahead, added ones 4 KiB"
    )


class _File:
    """A file of tensors that take no memory."""

    def __init__(self, **num_bytes: int) -> None:
        self.tensors = {
            name: SimpleNamespace(format=name, data=np.broadcast_to(np.uint8(0), (size,)))
            for name, size in num_bytes.items()
        }


class _Measuring:
    """Stands in for the measurement."""

    def __init__(self, answer: PrefetchSettings | None) -> None:
        self.answer = answer
        self.calls: list[tuple[str, bool]] = []

    def __call__(
        self, threads: int, kernels: str, format_name: str, *, in_place: bool, progress: Any
    ) -> PrefetchSettings | None:
        self.calls.append((format_name, in_place))
        return self.answer


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> _Measuring:
    found = _Measuring(FAST)
    monkeypatch.setattr(prefetch_speed, "measure_prefetch_settings", found)
    monkeypatch.setattr(reading_speeds, "available_memory_bytes", lambda: 1 << 40)
    return found


def _use(file: _File, *, in_place: bool = True) -> NativeOps:
    ops = NativeOps(1)
    use_measured_settings(ops, cast("GGUFFile", file), in_place=in_place)
    return ops


def test_a_large_model_is_measured_once(measuring: _Measuring) -> None:
    file = _File(q4_k=3 << 30, q6_k=1 << 30, f32=1 << 20)
    for _ in range(2):
        ops = _use(file)
        assert ops.prefetch_settings("packed") == FAST
        # Norms are no reason to measure floats.
        assert ops.prefetch_settings("floats") == PrefetchSettings()
    # Repacked in memory, whatever is mapped.
    assert measuring.calls == [("q4_k", False)]
    assert stored_prefetch_settings(1, ops.kernels) == {"q4_k": FAST}
    assert [each.kind for each in cached_files()] == ["speeds"]


def test_each_kind_that_reads_much_is_measured(measuring: _Measuring) -> None:
    ops = _use(_File(q4_0=3 << 30, f16=1 << 30), in_place=True)
    # Q4_0 is repacked in memory, whatever is mapped.
    assert measuring.calls == [("q4_0", False), ("f16", True)]
    assert ops.prefetch_settings("packed") == ops.prefetch_settings("floats") == FAST
    _use(_File(f16=2 << 30), in_place=False)
    assert measuring.calls[2:] == [("f16", False)]
    assert set(stored_prefetch_settings(1, ops.kernels)) == {"q4_0", "f16", "f16 in memory"}


def test_small_models_are_not_measured(measuring: _Measuring) -> None:
    assert _use(_File(f16=1 << 29)).prefetch_settings("floats") == PrefetchSettings()
    assert measuring.calls == []


def test_nothing_is_measured_without_memory_for_it(
    measuring: _Measuring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        reading_speeds, "available_memory_bytes", lambda: prefetch_speed.MEASURING_BYTES
    )
    assert _use(_File(f16=2 << 30)).prefetch_settings("floats") == PrefetchSettings()
    assert measuring.calls == []


@pytest.mark.parametrize("error", [MemoryError("no room"), OSError(12, "no room")])
def test_a_limit_of_memory_ends_no_load(
    measuring: _Measuring, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """`ulimit -v`: the system has memory, but this process gets none."""

    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(prefetch_speed, "measure_prefetch_settings", fail)
    assert _use(_File(f16=2 << 30)).prefetch_settings("floats") == PrefetchSettings()
    assert cached_files() == []


def test_a_busy_machine_keeps_the_default_until_the_next_time(measuring: _Measuring) -> None:
    measuring.answer = None
    assert _use(_File(f16=2 << 30)).prefetch_settings("floats") == PrefetchSettings()
    assert cached_files() == []
    measuring.answer = FAST
    assert _use(_File(f16=2 << 30)).prefetch_settings("floats") == FAST


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"ahead":512', '"ahead":-1'),
        lambda text: text.replace('"ahead":512', '"ahead":512.5'),
        lambda text: text.replace('"chunk_bytes":1048576', '"chunk_bytes":0'),
        lambda text: text.replace('"version":4', '"version":1'),
        lambda text: text.replace("f16 weights", "f32 weights"),
    ],
    ids=["torn", "negative", "broken", "no chunks", "old", "of something else"],
)
def test_a_damaged_file_is_measured_anew(measuring: _Measuring, damage: Any) -> None:
    file = _File(f16=2 << 30)
    _use(file)
    (stored,) = cached_files()
    text = stored.path.read_text()
    assert damage(text) != text
    stored.path.write_text(damage(text))
    assert _use(file).prefetch_settings("floats") == FAST
    assert len(measuring.calls) == 2
    assert stored.path.read_text() == text


def test_a_cache_that_cannot_be_written_is_no_error(
    measuring: _Measuring,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with caplog.at_level(logging.WARNING):
        assert _use(_File(f16=2 << 30)).prefetch_settings("floats") == FAST
    assert "cannot be cached and will be repeated" in caplog.text


def test_the_stored_way_belongs_to_a_processor_its_threads_and_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    PREFETCH_SETTINGS.keep(prefetch_settings_name(2, "avx2", "f16", in_place=True), FAST)
    assert stored_prefetch_settings(2, "avx2") == {"f16": FAST}
    assert stored_prefetch_settings(1, "avx2") == stored_prefetch_settings(2, "portable") == {}
    monkeypatch.setattr(measurements, "cpu_name", lambda: "another")
    assert stored_prefetch_settings(2, "avx2") == {}


@pytest.mark.parametrize("format_name", ["f16", "q8_0", "q4_0"])
def test_the_measurement_tries_ways_and_returns_one(
    monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    """With small matrices, by a clock by which one of the settings is twice as fast."""
    monkeypatch.setattr(prefetch_speed, "_MATRIX_BYTES", 1 << 20)
    monkeypatch.setattr(prefetch_speed, "has_a_core", lambda: True)
    kind = read_kind(format_name)
    teams: list[NativeOps] = []

    def make(threads: int, kernels: str, *, in_place: bool) -> NativeOps:
        teams.append(NativeOps(threads, kernels, in_place=in_place))
        return teams[-1]

    def seconds(call: Any) -> float:
        call()
        settings = teams[-1].prefetch_settings(kind)
        return 1.0 / (1 + (settings.ahead == 512) + (settings.add_ahead == 4 << 10))

    monkeypatch.setattr(prefetch_speed, "NativeOps", make)
    monkeypatch.setattr(prefetch_speed, "seconds_of", seconds)
    told: list[tuple[int, int]] = []
    settings = prefetch_speed.measure_prefetch_settings(
        1,
        NativeOps(1).kernels,
        format_name,
        in_place=True,
        progress=lambda done, total: told.append((done, total)),
    )
    assert settings == PrefetchSettings(ahead=512, add_ahead=4 << 10)
    assert told == [(done, 4) for done in range(5)]


def test_a_measurement_on_a_busy_machine_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_speed, "_MATRIX_BYTES", 1 << 20)
    monkeypatch.setattr(prefetch_speed, "has_a_core", lambda: True)
    times = iter([1.0] * 2 + [1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(prefetch_speed, "seconds_of", lambda _: next(times))
    assert prefetch_speed.measure_prefetch_settings(1, NativeOps(1).kernels, "f16") is None


@pytest.mark.parametrize(("share", "is_free"), [(1.0, True), (0.92, True), (0.5, False)])
def test_a_thread_that_has_to_wait_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, share: float, is_free: bool
) -> None:
    now = [0.0]

    def wall() -> float:
        now[0] += 0.01
        return now[0]

    clock = SimpleNamespace(perf_counter=wall, thread_time=lambda: share * now[0])
    monkeypatch.setattr(prefetch_speed, "time", clock)
    assert prefetch_speed.has_a_core() == is_free
    if not is_free:
        # It would take minutes with matrices as large as this.
        monkeypatch.setattr(prefetch_speed, "_MATRIX_BYTES", 1 << 60)
        assert prefetch_speed.measure_prefetch_settings(1, "portable", "f16") is None


@pytest.mark.parametrize(
    ("num_hot", "has_output", "is_measured"),
    [(8, True, False), (7, True, True), (8, False, True), (None, False, True)],
)
def test_nothing_is_measured_for_a_model_that_a_gpu_holds(
    monkeypatch: pytest.MonkeyPatch, num_hot: int | None, has_output: bool, is_measured: bool
) -> None:
    """It takes seconds and much memory; without a GPU (None) it is always worth it."""
    calls: list[object] = []
    monkeypatch.setattr(loader, "use_measured_settings", lambda *_, **__: calls.append(1))
    if num_hot is not None:
        layer = LayerPlacement(True, True, np.arange(num_hot, dtype=np.int32))
        plan = PlacementPlan("", "test", 0, 8, has_output, (layer,))
        stand_in = Device("cpu", "a stand-in", is_interpreted=True)
        monkeypatch.setattr(loader, "find_device", lambda _: stand_in)
        monkeypatch.setattr(
            offload_place,
            "place",
            lambda sparsity, *_: SimpleNamespace(plan=plan, model=sparsity.model),
        )
    options = engine_options()
    loader.load(loader.open_model(None, options), options, None)
    assert bool(calls) == is_measured
