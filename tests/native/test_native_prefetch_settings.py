"""Ways of reading change no bit of a result, whichever operation reads."""

from dataclasses import replace

import numpy as np
import pytest

from native_cases import (
    FORMATS,
    KERNELS,
    given_rows,
    make_ffn,
    make_linear,
    make_predictor,
    numbers,
    same_bits,
    use_kernels,
)
from powerinfer import _core
from powerinfer.bench.read_bandwidth import PLAIN_READ_SETTINGS, PlainReader
from powerinfer.ops.cpu.machine import read_kind
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.cpu.prefetch_settings import READ_KINDS, PlainReadSettings, PrefetchSettings
from powerinfer.ops.protocol import ActiveIds
from powerinfer.values import Activation, ActivationKind, ByteArray, FloatArray

SETTINGS = (
    PrefetchSettings(0, 1, 0, 0),
    PrefetchSettings(64, 4096, 100, 1 << 20),
    PrefetchSettings(512, 1 << 20, 4096, 4096),
    PrefetchSettings(8192, 8 << 20, 24 << 10, 24 << 10),
    PrefetchSettings(1 << 20, 1000, 1 << 20, 0),
)
COLUMNS = 512


def with_settings(kernels: str, settings: PrefetchSettings) -> NativeOps:
    """A backend that reads everything with the same settings."""
    ops = use_kernels(kernels)
    for kind in READ_KINDS:
        ops.set_prefetch_settings(kind, settings)
    return ops


def results(ops: NativeOps, format_name: str) -> list[FloatArray]:
    """Of everything that reads rows."""
    relu = Activation(ActivationKind.RELU)
    ffns = [
        make_ffn(ops, relu, (COLUMNS, 2304), format_name=format_name, is_exact_sparse=is_exact)
        for is_exact in (False, True)
    ]
    linear = make_linear(ops, format_name, (211, COLUMNS), 9)
    predictor = make_predictor(ops, (COLUMNS, 2304))
    predicted = replace(ffns[1], predictor=predictor)
    found = []
    for num_tokens in (1, 3, 6):
        x = numbers((num_tokens, COLUMNS), 3)
        is_active = np.random.default_rng(5).random((num_tokens, 2304)) < 0.2
        active = ActiveIds.of_mask(is_active)
        for marks in (None, given_rows(num_tokens)):
            found += ops.linear(x, [linear], marks)
            found += [ops.ffn(x, ffn, None, marks) for ffn in (*ffns, predicted)]
            found.append(ops.ffn_active(x, ffns[1], active, marks))
            found.append(ops.predict(x, predictor, marks).mask(2304).astype(np.float32))
    return found


def _marks(kernels: str, format_name: str) -> tuple[pytest.MarkDecorator, ...]:
    """The slow table reads as the others do: of it a format of each kind is enough."""
    is_quick = kernels != "portable" or format_name in ("f16", "q8_0", "q4_k")
    return () if is_quick else (pytest.mark.thorough,)


@pytest.mark.parametrize(
    ("kernels", "format_name"),
    [
        pytest.param(kernels, format_name, marks=_marks(kernels, format_name))
        for kernels in KERNELS
        for format_name in FORMATS
    ],
)
def test_no_way_changes_a_bit(kernels: str, format_name: str) -> None:
    usual = results(use_kernels(kernels), format_name)
    for settings in SETTINGS:
        for ours, other in zip(
            results(with_settings(kernels, settings), format_name), usual, strict=True
        ):
            assert same_bits(ours, other)


def test_a_way_is_that_of_one_kind_of_one_team() -> None:
    ops, other = NativeOps(1), NativeOps(1)
    for kind in READ_KINDS:
        assert ops.prefetch_settings(kind) == PrefetchSettings()
    settings = SETTINGS[1]
    ops.set_prefetch_settings("bytes", settings)
    assert ops.prefetch_settings("bytes") == settings
    assert ops.prefetch_settings("packed") == ops.prefetch_settings("floats") == PrefetchSettings()
    assert other.prefetch_settings("bytes") == PrefetchSettings()


@pytest.mark.parametrize("values", [(-1, 1, 0, 0), (0, 0, 0, 0), (0, 1, 0, 1 << 40)])
def test_a_way_that_cannot_be_is_refused(values: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="distances must be"):
        NativeOps(1).set_prefetch_settings("bytes", PrefetchSettings(*values))
    with pytest.raises(ValueError, match="named bits"):
        NativeOps(1).set_prefetch_settings("bits", PrefetchSettings())


def test_every_format_has_a_kind() -> None:
    assert [read_kind(name) for name in ("f32", "f16", "bf16")] == ["floats"] * 3
    assert read_kind("q8_0") == read_kind("q8_0_superblock") == "bytes"
    packed = ("q4_0", "q4_0_superblock", "q6_k", "q6_k_superblock", "mxfp4")
    assert {read_kind(name) for name in packed} == {"packed"}


@pytest.mark.parametrize("sizes", [(), (7,), (64, 1), (100_000, 8, 300_003), (1 << 20,)])
def test_a_plain_read_reads_every_word_once(sizes: tuple[int, ...]) -> None:
    random = np.random.default_rng(len(sizes))
    arrays = [random.integers(0, 256, size, np.uint8) for size in sizes]
    wanted = 0
    for array in arrays:
        words = array[: array.nbytes // 8 * 8].view(np.uint64)
        wanted ^= int(np.bitwise_xor.reduce(words)) if len(words) else 0
    team = _core.ThreadTeam(2)
    for ahead in (0, 64, 2048):
        for chunk_bytes in (64, 4096, 1 << 20):
            for streams in (1, 2, 3, 16):
                assert _core.read_bytes(team, arrays, ahead, chunk_bytes, streams) == wanted


@pytest.mark.parametrize("settings", [(-1, 64, 1), (0, 0, 1), (0, 100, 1), (0, 64, 0), (0, 64, 17)])
def test_a_plain_read_that_cannot_be_is_refused(settings: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        _core.read_bytes(_core.ThreadTeam(1), [], *settings)


def test_the_plain_read_that_is_reported_is_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PlainReader(1)
    times = dict.fromkeys(PLAIN_READ_SETTINGS, 2.0) | {PLAIN_READ_SETTINGS[4]: 1.0}
    read = []

    def read_all_s(arrays: list[ByteArray], settings: PlainReadSettings) -> float:
        read.append(sum(array.nbytes for array in arrays))
        return times[settings]

    monkeypatch.setattr(reader._reader, "read_all_s", read_all_s)
    data = np.zeros(600 << 20, np.uint8)
    assert reader.read_s([data[: 500 << 20], data[500 << 20 :]]) == 1.0
    assert reader.settings == PLAIN_READ_SETTINGS[4]
    # Ways are compared on a part, and only once.
    assert read[:-2] == [512 << 20] * (1 + 3 * len(PLAIN_READ_SETTINGS))
    assert read[-2:] == [data.nbytes] * 2
    # Every time the pages are fetched before the read that counts.
    reader.read_s([data])
    assert read[-4:] == [data.nbytes] * 4


def test_pages_are_fetched_before_the_plain_read_that_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = PlainReader(1, compared_bytes=1)
    data = np.zeros(1 << 10, np.uint8)
    reader.read_s([data])
    times = iter([9.0, 1.0])
    monkeypatch.setattr(reader._reader, "read_all_s", lambda arrays, settings: next(times))
    assert reader.read_s([data]) == 1.0
