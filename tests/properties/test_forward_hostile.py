"""Any damage to a model's keys or tensors: it loads and runs, or one of our errors says why not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerinfer.errors import PowerInferError
from powerinfer.gguf import GGUFFile, TensorSpec, open_gguf, write_gguf
from powerinfer.models import load_model
from powerinfer.ops.cpu.ops import NativeOps
from tiny_models import TINY_EXPERTS, TINY_MODELS, write_model

SIZES = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**62]),
)
VALUES = st.one_of(
    SIZES,
    st.floats(width=32),
    st.booleans(),
    st.sampled_from(["", "llama", "yarn", "linear", "none", "relu", "fatrelu", "\0"]),
    st.lists(st.integers(0, 9), max_size=4).map(lambda items: np.array(items, np.int32)),
    st.lists(st.sampled_from(["a", "b"]), max_size=3),
)
KEYS = [
    "general.architecture",
    "powerinfer.ffn_activation",
    "powerinfer.fatrelu_threshold",
    "powerinfer.sparse_threshold",
    "powerinfer.post_norm",
    "tokenizer.ggml.tokens",
    *(
        # The architecture of the model takes the place of the dot.
        f".{name}"
        for name in (
            "context_length",
            "embedding_length",
            "block_count",
            "feed_forward_length",
            "expert_count",
            "expert_used_count",
            "expert_feed_forward_length",
            "expert_shared_feed_forward_length",
            "expert_gating_func",
            "expert_weights_norm",
            "expert_weights_scale",
            "moe_latent_size",
            "attention.head_count",
            "attention.head_count_kv",
            "attention.key_length",
            "attention.value_length",
            "attention.layer_norm_rms_epsilon",
            "attention.layer_norm_epsilon",
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "attention.scale",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "embedding_scale",
            "residual_scale",
            "logit_scale",
            "rope.freq_base_swa",
            "rope.dimension_count",
            "rope.freq_base",
            "rope.scale_linear",
            "rope.scaling.type",
            "rope.scaling.factor",
            "rope.scaling.original_context_length",
            "rope.scaling.attn_factor",
            "rope.scaling.yarn_ext_factor",
            "rope.scaling.yarn_beta_fast",
            "rope.scaling.yarn_beta_slow",
        )
    ),
]
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.one_of(st.none(), VALUES), max_size=4)


@pytest.fixture(
    scope="module",
    params=[
        *("llama-relu", "opt-powerinfer", "falcon-40b-powerinfer", "nemotron"),
        *("mixtral-single", "mixtral-relu-biases", "mixtral-drelu-transposed"),
        *("gemma3", "gpt-oss", "smallthinker-window"),
    ],
)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    path = tmp_path_factory.mktemp("plain") / "m.gguf"
    return open_gguf(write_model(path, (TINY_MODELS | TINY_EXPERTS)[request.param]))


def load_and_run(path: Path) -> None:
    """Load and run a step and a decode; only a `PowerInferError` may come out."""
    try:
        model = load_model(open_gguf(path), NativeOps(1))
        if model.context_length < 4:
            return
        cache = model.new_cache(70)
        logits = model.forward(cache.batch([(0, [1, 0, 2], 0)], [True]), cache)
        assert logits.shape == (3, model.config.vocab_size)
        model.forward(cache.batch([(0, [1], 3)], [False]), cache)
    except PowerInferError as error:
        assert str(error)


@settings(max_examples=2 * settings().max_examples)
@given(changes=CHANGES)
def test_damaged_keys(
    plain: GGUFFile, changes: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "keys.gguf"
    prefix = plain.get_str("general.architecture")
    changes = {prefix * key.startswith(".") + key: value for key, value in changes.items()}
    metadata = plain.metadata | {key: value for key, value in changes.items() if value is not None}
    for key in (key for key, value in changes.items() if value is None):
        metadata.pop(key, None)
    tensors = [(t.name, t.shape, t.format, t.data) for t in plain.tensors.values()]
    write_gguf(path, metadata, tensors, magic=plain.magic)
    load_and_run(path)


@settings(max_examples=settings().max_examples)
@given(data=st.data())
def test_damaged_tensors(
    plain: GGUFFile, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One tensor gets another name, shape, type or content."""
    path = tmp_path_factory.getbasetemp() / "tensors.gguf"
    names = sorted(plain.tensors)
    victim = data.draw(st.sampled_from(names))
    shape = tuple(data.draw(st.lists(st.integers(0, 50), max_size=4)))
    changed = data.draw(st.sampled_from(["name", "shape", "type", "content"]))
    tensors: list[TensorSpec] = []
    for tensor in plain.tensors.values():
        entry: list[Any] = [tensor.name, tensor.shape, tensor.format, tensor.data]
        if tensor.name == victim:
            if changed == "name":
                entry[0] = "blk.0.something"
            elif changed == "shape":
                size = int(np.prod(shape))
                entry[1:4] = [shape, "f32", np.ones(size, "<f4").tobytes()]
            elif changed == "type":
                format_name = data.draw(st.sampled_from(["i8", "i32", "f64", "i16", "bf16"]))
                width = {"i8": 1, "i16": 2, "bf16": 2, "i32": 4, "f64": 8}[format_name]
                entry[2:4] = [format_name, bytes(tensor.num_elements * width)]
            else:
                value = data.draw(st.floats(width=32))
                entry[3] = np.full(tensor.num_elements, value, "<f4").tobytes()
        tensors.append((entry[0], entry[1], entry[2], entry[3]))
    write_gguf(path, plain.metadata, tensors, magic=plain.magic)
    load_and_run(path)
