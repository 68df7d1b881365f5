"""A sequence whose logits are computed at once: one flag per token, also after an interrupt."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerinfer import PowerInferError, PromptError
from powerinfer.engine.direct import DirectSequence
from powerinfer.gguf import open_gguf
from powerinfer.kvcache import KVCache
from powerinfer.models import Model, load_model
from powerinfer.ops.backend import as_backend
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, write_model

KINDS = [True, False, True, False, False]
TOKENS = [5, 6, 7, 8, 9]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    file = open_gguf(write_model(tmp_path / "tiny.gguf", TINY_MODELS["llama"]))
    return load_model(file, as_backend(NativeOps(1, "portable")))


def new_sequence(model: Model) -> DirectSequence:
    return DirectSequence(model, model.new_cache(), batch_size=8)


class InterruptedBefore(list[Any]):
    """Tokens, or their kinds; Ctrl-C comes just before some are added."""

    def __setitem__(self, _index: Any, _values: Iterable[Any]) -> None:
        raise KeyboardInterrupt


class InterruptedAfter(list[Any]):
    """Tokens, or their kinds; Ctrl-C comes just after some were added."""

    def __setitem__(self, index: Any, values: Iterable[Any]) -> None:
        super().__setitem__(index, values)
        raise KeyboardInterrupt


@pytest.mark.parametrize("count", [0, 2, 4])
def test_kinds_are_one_per_token(model: Model, count: int) -> None:
    sequence = new_sequence(model)
    with pytest.raises(PromptError, match=f"is_prompt has {count} entries, there are 3 tokens"):
        sequence.extend([1, 2, 3], is_prompt=[True] * count)
    assert sequence.token_ids == []


@pytest.mark.parametrize("name", ["token_ids", "is_prompt"])
@pytest.mark.parametrize("interrupted", [InterruptedBefore, InterruptedAfter])
def test_an_interrupt_between_lists_leaves_kinds_with_their_tokens(
    model: Model, name: str, interrupted: type[list[Any]]
) -> None:
    sequence = new_sequence(model)
    sequence.extend(TOKENS, is_prompt=KINDS)
    inner = sequence._sequence
    setattr(inner, name, interrupted(getattr(inner, name)))
    with pytest.raises(KeyboardInterrupt):
        sequence.extend([1, 2])
    setattr(inner, name, list(getattr(inner, name)))
    check_goes_on(model, sequence, TOKENS, KINDS)


@pytest.mark.parametrize("num_steps", [0, 1])
def test_an_interrupted_step_leaves_what_earlier_ones_computed(
    model: Model, num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = new_sequence(model)
    sequence.extend(TOKENS, is_prompt=KINDS)
    forward, sizes = Model.forward, list[int]()

    def interrupted(self: Model, batch: Any, *args: Any, **options: Any) -> FloatArray:
        logits = forward(self, batch, *args, **options)
        sizes.append(batch.num_tokens)
        if len(sizes) > num_steps:
            raise KeyboardInterrupt
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(Model, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sequence.extend(range(10, 22))
    kept = list(range(10, 18))[: 8 * num_steps]
    check_goes_on(model, sequence, [*TOKENS, *kept], [*KINDS, *[True] * len(kept)])


@pytest.mark.parametrize("is_before", [True, False])
def test_an_interrupted_truncation_leaves_kinds_with_their_tokens(
    model: Model, is_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = new_sequence(model)
    sequence.extend(TOKENS, is_prompt=KINDS)
    truncate = KVCache.truncate

    def interrupted(self: KVCache, *args: Any) -> None:
        if not is_before:
            truncate(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KVCache, "truncate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sequence.truncate(2)
    check_goes_on(model, sequence, TOKENS[:2], KINDS[:2])


@pytest.mark.parametrize("length", [0, 2, 5, 9])
def test_a_truncated_sequence_keeps_its_first_tokens(model: Model, length: int) -> None:
    sequence = new_sequence(model)
    sequence.extend(TOKENS, is_prompt=KINDS)
    sequence.truncate(length)
    check_goes_on(model, sequence, TOKENS[:length], KINDS[:length])


def check_goes_on(
    model: Model, sequence: DirectSequence, token_ids: list[int], kinds: list[bool]
) -> None:
    """What follows an interrupt is computed as if it had not come."""
    assert (sequence.token_ids, sequence.is_prompt) == (token_ids, kinds)
    assert sequence.num_free == sequence.context_length - len(token_ids)
    fresh = new_sequence(model)
    fresh.extend([*token_ids, 3], is_prompt=[*kinds, False])
    sequence.append(3)
    assert (sequence.token_ids, sequence.is_prompt) == ([*token_ids, 3], [*kinds, False])
    np.testing.assert_array_equal(sequence.extend([4]), fresh.extend([4]))


def test_an_abandoned_sequence_starts_again(model: Model) -> None:
    sequence = new_sequence(model)
    sequence.extend(TOKENS)
    sequence.abandon()
    assert sequence.token_ids == []
    np.testing.assert_array_equal(sequence.extend([4, 5]), new_sequence(model).extend([4, 5]))


@pytest.mark.parametrize("lost_at", [1, 2])
def test_a_sequence_abandoned_while_it_waits_for_a_step_says_so(model: Model, lost_at: int) -> None:
    """Another thread generates texts before the first or the second step of 12 tokens."""
    num_steps = 0

    @contextmanager
    def exclusive() -> Iterator[None]:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 1 + lost_at:
            sequence.abandon()
        yield

    sequence = DirectSequence(model, model.new_cache(), batch_size=8, exclusive=exclusive)
    sequence.extend(TOKENS)
    with pytest.raises(PowerInferError, match="took the room of this sequence"):
        sequence.extend(range(10, 22))
    assert sequence.token_ids == []
    np.testing.assert_array_equal(sequence.extend(TOKENS), new_sequence(model).extend(TOKENS))
