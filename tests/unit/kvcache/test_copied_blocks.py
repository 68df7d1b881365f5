"""Copies of KV blocks on every backend: the same keys and values elsewhere."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from powerinfer.gguf import GGUFFile, open_gguf
from powerinfer.kvcache import KVCache
from powerinfer.models import Model, load_model
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.protocol import KVType
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, wide, write_model

BACKENDS: dict[str, Callable[[GGUFFile], Model]] = {
    "reference": lambda file: load_model(file, ReferenceOps(), context_length=256),
    "cpu": lambda file: load_model(file, NativeOps(2), context_length=256),
}
PROMPT = [(11 * index) % 200 + 3 for index in range(70)]


@pytest.fixture(params=sorted(BACKENDS))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    path = write_model(tmp_path / "model.gguf", wide(TINY_MODELS["llama"]))
    return BACKENDS[request.param](open_gguf(path))


def decode(model: Model, cache: KVCache, names: list[str], start: int) -> FloatArray:
    """Three steps that go on after a prompt, all sequences together."""
    steps = []
    for step in range(3):
        tokens = [5 + step + 7 * (name == "other") for name in names]
        pairs = zip(names, tokens, strict=True)
        parts = [(name, [token], start + step) for name, token in pairs]
        steps.append(model.forward(cache.batch(parts, [False] * len(parts)), cache))
    return np.stack(steps)


@pytest.mark.parametrize("kv_type", KVType)
def test_a_fork_computes_what_its_parent_would(model: Model, kv_type: KVType) -> None:
    cache, alone = (model.new_cache(512, kv_type) for _ in range(2))
    for each in (cache, alone):
        model.forward(each.batch([("text", PROMPT, 0)], [True]), each)
    expected = decode(model, alone, ["text"], len(PROMPT))
    cache.fork("text", "other", len(PROMPT))
    # The first block is shared, of the second there are two.
    assert cache.blocks_of("text")[0] == cache.blocks_of("other")[0]
    assert cache.num_used_blocks == 3
    for _ in range(2):
        # The second time the steps run from a record that was made before the blocks were copied.
        both = decode(model, cache, ["text", "other"], len(PROMPT))
        np.testing.assert_array_equal(both[:, 0], expected[:, 0])
        cache.free("other")
        cache.fork("text", "other", len(PROMPT))
    cache.check_integrity()


def test_blocks_that_do_not_exist_are_refused(model: Model) -> None:
    cache = model.new_cache(128)
    for pair in ((0, 2), (2, 0), (-1, 0), (0, -1)):
        with pytest.raises(IndexError, match=r"block|out of bounds"):
            cache.copy_blocks([pair])
