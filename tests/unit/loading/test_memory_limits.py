"""What loading does where memory is short."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from powerinfer import LLM, PromptError
from powerinfer.loading import loader

OpenLLM = Callable[..., LLM]


@pytest.fixture
def open_llm(tiny: Path) -> OpenLLM:
    def opened(**options: Any) -> LLM:
        return LLM(tiny, kernels="reference", **options)

    return opened


def test_warns_where_memory_is_short(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loader, "available_memory_bytes", lambda: 1 << 20)
    open_llm()
    assert "only 1.0 MiB are free" in caplog.text
    caplog.clear()
    monkeypatch.setattr(loader, "available_memory_bytes", lambda: 1 << 40)
    open_llm()
    assert not caplog.text


@pytest.mark.parametrize(("total", "repacks"), [(1 << 20, False), (1 << 40, True), (None, True)])
def test_weights_larger_than_the_machine_are_not_copied(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch, total: int | None, repacks: bool
) -> None:
    asked: list[bool] = []
    make_ops = loader.make_ops

    def note(kernels: str | None, threads: int, *, repack: bool, **others: bool) -> Any:
        asked.append(repack)
        return make_ops(kernels, threads, repack=repack, **others)

    monkeypatch.setattr(loader, "make_ops", note)
    monkeypatch.setattr(loader, "total_memory_bytes", lambda: total)
    open_llm()
    assert asked == [repacks]


def test_a_context_that_memory_cannot_hold_is_refused(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "available_memory_bytes", lambda: 1 << 20)
    # 2 layers, keys and values, 2 heads of 8 numbers of 2 bytes: 128 bytes per position.
    open_llm(context_length=8192)
    with pytest.raises(
        PromptError, match=r"8193 tokens takes 1.0 MiB .* take a smaller one \(context_length"
    ):
        open_llm(context_length=8193)
