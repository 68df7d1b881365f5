"""PowerInfer's files as they are found: container, names, types, sizes and their oddities."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import NATIVE, using
from command_line import invoke
from powerinfer.convert.pack import pack
from powerinfer.engine.direct import DirectSequence
from powerinfer.errors import GGUFError, PromptError, UnsupportedError
from powerinfer.gguf import (
    GGUFFile,
    Tensor,
    TensorSpec,
    encode_tensor,
    keys,
    open_gguf,
    write_gguf,
)
from powerinfer.models import get_architecture, load_model, read_config
from powerinfer.ops.backend import Backend, as_backend
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, TinyModel, wide, write_model
from tolerances import assert_close

TOKEN_IDS = [1, 40, 77, 200, 5, 13, 280]
POWERINFER = [name for name, model in TINY_MODELS.items() if model.magic == "PWRI"]

Change = Callable[[Tensor], TensorSpec | None]


def spec(tensor: Tensor) -> TensorSpec:
    return tensor.name, tensor.shape, tensor.format, tensor.data


def rewrite(
    path: Path,
    model: TinyModel,
    metadata: Mapping[str, Any] | None = None,
    change: Change = spec,
    **options: Any,
) -> GGUFFile:
    """A tiny model with keys changed (None removes one) and tensors changed (None likewise)."""
    file = open_gguf(write_model(path / "plain.gguf", model))
    values = {**file.metadata, **(metadata or {})}
    values = {key: value for key, value in values.items() if value is not None}
    tensors = [new for tensor in file.tensors.values() if (new := change(tensor)) is not None]
    write_gguf(path / "changed.gguf", values, tensors, **({"magic": file.magic} | options))
    return open_gguf(path / "changed.gguf")


def logits_of(file: GGUFFile, ops: Backend | None = None, **options: Any) -> FloatArray:
    model = load_model(file, ops or as_backend(ReferenceOps()), **options)
    cache = model.new_cache()
    return model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache)


@pytest.mark.parametrize("name", POWERINFER)
def test_version_alignment_order_and_unknown_keys_do_not_matter(name: str, tmp_path: Path) -> None:
    file = rewrite(tmp_path, TINY_MODELS[name], {"split.vram_capacity": 7, "x.y": "z"})
    expected = logits_of(file)
    tensors = [spec(tensor) for tensor in reversed(file.tensors.values())]
    write_gguf(tmp_path / "v2.gguf", file.metadata, tensors, magic="PWRI", alignment=128)
    data = bytearray((tmp_path / "v2.gguf").read_bytes())
    assert data[:8] == b"PWRI\3\0\0\0"
    data[4] = 2
    (tmp_path / "v2.gguf").write_bytes(data)
    np.testing.assert_array_equal(logits_of(open_gguf(tmp_path / "v2.gguf")), expected)


@pytest.mark.parametrize(
    ("name", "powerinfer", "plain"),
    [
        ("llama", "relu", "silu"),
        ("bamboo", "drelu", "drelu"),
        ("falcon", "relu", "gelu"),
        ("opt", "relu", "relu"),
        ("arcee", "relu2", "relu2"),
        ("nemotron", "relu2", "relu2"),
    ],
)
def test_magic_and_architecture_decide_the_activation(
    name: str, powerinfer: str, plain: str, tmp_path: Path
) -> None:
    """There is no key in PowerInfer's files; the name of a ReLU Llama is plain `llama`."""
    architecture = get_architecture(name)
    for magic, expected in (("PWRI", powerinfer), ("GGUF", plain)):
        file = rewrite(tmp_path, TINY_MODELS[name], magic=magic)
        assert str(read_config(file, architecture).activation) == expected
        assert str(read_config(file, architecture, "fatrelu:0.5").activation) == "fatrelu:0.5"


@pytest.mark.parametrize("file_type", [0, 2, 7, 999])
def test_file_type_is_not_looked_at(file_type: int, tmp_path: Path) -> None:
    model = TINY_MODELS["opt-powerinfer"]
    expected = logits_of(rewrite(tmp_path, model))
    file = rewrite(tmp_path, model, {"general.file_type": file_type})
    np.testing.assert_array_equal(logits_of(file), expected)


MIXED = {"attn_q": "q8_0", "output": "q6_k", "ffn_up": "q4_0", "fc1": "q5_0", "fc2": "q5_0"}


@pytest.mark.parametrize("down", ["f32", "f16", "q4_0", "q5_0", "q8_0", "q6_k"])
@pytest.mark.parametrize("backend", NATIVE)
def test_types_differ_from_tensor_to_tensor(backend: str, down: str, tmp_path: Path) -> None:
    """As its quantizer writes them, and with a down matrix it would misread: not F16, not Q4_0."""
    model = replace(
        wide(TINY_MODELS["llama-powerinfer"], "f16"),
        other_formats=MIXED | {"ffn_down_t": down},
        predictor_rank=64,
        predictor_rank_step=32,
    )
    path = write_model(tmp_path / "m.gguf", model)
    expected = logits_of(open_gguf(path), sparsity="exact")
    low = rewrite(tmp_path, model, {"powerinfer.sparse_threshold": -3e38})
    with using(backend) as ops:
        assert_close(
            logits_of(open_gguf(path), ops, sparsity="exact"), expected, "native quantized"
        )
        assert_close(logits_of(low, ops, sparsity="mlp"), expected, "native quantized")
        assert ops.counters.predictor_bytes > 0


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("intermediate_size", [47, 1001, 1024])
@pytest.mark.parametrize("name", ["bamboo", "opt-powerinfer"])
def test_any_number_of_neurons(
    name: str, intermediate_size: int, backend: str, tmp_path: Path
) -> None:
    """The original takes other kernels up to 1000 neurons and needs multiples of 256."""
    model = replace(TINY_MODELS[name], intermediate_size=intermediate_size, predictor_rank=17)
    low = rewrite(tmp_path, model, {"powerinfer.sparse_threshold": -3e38})
    expected = logits_of(low, sparsity="off")
    with using(backend) as ops:
        for sparsity in ("off", "exact", "mlp"):
            assert_close(logits_of(low, ops, sparsity=sparsity), expected, "native float")


@pytest.mark.parametrize("name", ["llama-powerinfer", "falcon-40b-powerinfer", "opt-powerinfer"])
def test_q4_0_is_near_the_numbers_it_was_made_from(name: str, tmp_path: Path) -> None:
    def as_q4_0(tensor: Tensor) -> TensorSpec:
        is_kept = len(tensor.shape) == 1 or "fc" in tensor.name
        return spec(tensor) if is_kept else encode_tensor(tensor.name, tensor.decode(), "q4_0")

    model = wide(TINY_MODELS[name])
    expected = logits_of(rewrite(tmp_path, model), sparsity="exact")
    got = logits_of(rewrite(tmp_path, model, change=as_q4_0), sparsity="exact")
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    # About 8 % of each weight's spread, over two layers and the head.
    assert 0.01 < error < 0.3


def test_the_misspelt_key_stays() -> None:
    assert keys.SEPARATOR_TOKEN_ID == "tokenizer.ggml.seperator_token_id"


class TestOPT:
    """Names and positions of `opt` files."""

    @pytest.mark.parametrize("name", ["opt", "opt-powerinfer"])
    def test_positions_are_two_fewer_than_rows(self, name: str, tmp_path: Path) -> None:
        """Its converter writes the 2050 rows as context_length: there are 2048 positions."""
        file = rewrite(tmp_path, TINY_MODELS[name], {"opt.context_length": 162})
        assert file.tensors["position_embd.weight"].shape == (162, 32)
        assert load_model(file, ReferenceOps()).context_length == 160
        with pytest.raises(PromptError, match=r"positions for only 160.*context_length"):
            load_model(file, ReferenceOps(), context_length=161)

    def test_the_last_position_has_an_embedding(self, tmp_path: Path) -> None:
        model = replace(TINY_MODELS["opt"], context_length=6)
        loaded = load_model(rewrite(tmp_path, model), ReferenceOps())
        sequence = DirectSequence(loaded, loaded.new_cache(), 8)
        assert np.isfinite(sequence.extend(TOKEN_IDS[:6])).all()
        with pytest.raises(PromptError, match="do not fit"):
            sequence.extend([7])

    @pytest.mark.parametrize("num_rows", [2, 1])
    def test_a_table_without_positions_is_refused(self, num_rows: int, tmp_path: Path) -> None:
        def change(tensor: Tensor) -> TensorSpec:
            if tensor.name != "position_embd.weight":
                return spec(tensor)
            return encode_tensor(tensor.name, tensor.decode()[:num_rows])

        file = rewrite(tmp_path, TINY_MODELS["opt"], change=change)
        with pytest.raises(GGUFError, match=r"position_embd\.weight"):
            load_model(file, ReferenceOps())

    @pytest.mark.parametrize("name", ["position_embd.weight", "blk.1.ffn_down_t.bias"])
    def test_what_is_missing_is_named(self, name: str, tmp_path: Path) -> None:
        """The bias of down is renamed with it, though it was not transposed."""
        file = rewrite(
            tmp_path,
            TINY_MODELS["opt-powerinfer"],
            change=lambda tensor: None if tensor.name == name else spec(tensor),
        )
        with pytest.raises(GGUFError, match=f"missing tensors: {name}"):
            load_model(file, ReferenceOps())

    def test_the_head_is_the_embedding(self, tmp_path: Path) -> None:
        file = rewrite(tmp_path, TINY_MODELS["opt-powerinfer"])
        assert "output.weight" not in file.tensors
        embedding = encode_tensor("output.weight", file.tensors["token_embd.weight"].decode())
        tensors = [*map(spec, file.tensors.values()), embedding]
        write_gguf(tmp_path / "untied.gguf", file.metadata, tensors, magic="PWRI")
        untied = logits_of(open_gguf(tmp_path / "untied.gguf"))
        np.testing.assert_array_equal(logits_of(file), untied)

    def test_epsilon_is_that_of_the_training_where_no_key_says(self, tmp_path: Path) -> None:
        key = "opt.attention.layer_norm_epsilon"
        file = rewrite(tmp_path, TINY_MODELS["opt"], {key: None})
        assert load_model(file, ReferenceOps()).config.norm_eps == pytest.approx(1e-5)
        file = rewrite(tmp_path, TINY_MODELS["opt"], {key: 0.5})
        assert load_model(file, ReferenceOps()).config.norm_eps == 0.5

    def test_projected_embeddings_are_refused(self, tmp_path: Path) -> None:
        def narrow(tensor: Tensor) -> TensorSpec:
            if tensor.name != "token_embd.weight":
                return spec(tensor)
            return encode_tensor(tensor.name, np.ascontiguousarray(tensor.decode()[:, :16]))

        file = rewrite(tmp_path, TINY_MODELS["opt-post-norm"], change=narrow)
        with pytest.raises(UnsupportedError, match=r"OPT-350m.*not supported"):
            load_model(file, ReferenceOps())

    def test_post_norm_is_another_model(self, tmp_path: Path) -> None:
        file = rewrite(tmp_path, TINY_MODELS["opt"], {"powerinfer.post_norm": True})
        post = load_model(file, ReferenceOps())
        assert post.config.is_post_norm
        assert post.weights.layers[0].ffn_input_norm is post.weights.layers[0].norms["attn_norm"]
        difference = logits_of(file) - logits_of(rewrite(tmp_path, TINY_MODELS["opt"]))
        assert np.abs(difference).max() > 0.1


def test_the_bias_of_a_transposed_down_must_be_renamed(tmp_path: Path) -> None:
    """Where biases are optional, one under the plain name would be left out in silence."""

    def change(tensor: Tensor) -> TensorSpec:
        name = tensor.name.replace("ffn_down_t.bias", "ffn_down.bias")
        return name, tensor.shape, tensor.format, tensor.data

    file = rewrite(tmp_path, TINY_MODELS["nemotron-biases"], change=change)
    with pytest.raises(GGUFError, match=r"missing tensors: blk\.0\.ffn_down_t\.bias"):
        load_model(file, ReferenceOps())


@pytest.mark.parametrize("name", ["attn_norm.bias", "attn_norm_2.bias"])
def test_the_bias_of_a_layer_norm_is_required(name: str, tmp_path: Path) -> None:
    file = rewrite(
        tmp_path,
        TINY_MODELS["falcon-40b-powerinfer"],
        change=lambda tensor: None if tensor.name.endswith(f".{name}") else spec(tensor),
    )
    with pytest.raises(GGUFError, match=rf"missing tensors: blk\.0\.{name}, blk\.1\.{name}"):
        load_model(file, ReferenceOps())


def test_falcons_norms_are_not_what_their_names_say(tmp_path: Path) -> None:
    """If there is an `attn_norm_2`, `attn_norm` feeds the FFN, and `ffn_input_norm` says so."""
    model = load_model(rewrite(tmp_path, TINY_MODELS["falcon-40b-powerinfer"]), ReferenceOps())
    layer = model.weights.layers[1]
    assert layer.ffn_input_norm is layer.norms["attn_norm"]
    assert set(layer.norms) == {"attn_norm", "attn_norm_2"}


# Experts stored one by one are joined too: tests/unit/convert/test_pack_experts.py.
UNTRANSPOSED = [
    name
    for name, model in TINY_MODELS.items()
    if not model.is_down_transposed and model.expert_layout != "single" and model.has_ffns
]


@pytest.mark.parametrize("name", UNTRANSPOSED)
def test_packing_changes_nothing_but_the_names(name: str, tmp_path: Path) -> None:
    source = rewrite(tmp_path, TINY_MODELS[name])
    assert pack(source, tmp_path / "packed.gguf").is_exact
    packed = open_gguf(tmp_path / "packed.gguf")
    down = re.compile(r"ffn_down(_exps|_shexp)?(?!_exps|\.scale)")
    renamed = {down.sub(r"ffn_down\1_t", tensor) for tensor in source.tensors}
    assert set(packed.tensors) == renamed
    assert_close(logits_of(packed), logits_of(source), "exact sparse")


@pytest.mark.parametrize("name", TINY_MODELS)
def test_inspect_knows_every_model(name: str, tmp_path: Path) -> None:
    model = TINY_MODELS[name]
    shown = invoke("inspect", write_model(tmp_path / "m.gguf", model), "--json")
    assert shown.exit_code == 0, shown.output
    summary = json.loads(shown.stdout)
    assert summary["problem"] is None
    assert summary["architecture"] == model.architecture
    assert summary["sizes"]["context_length"] == model.context_length
    is_transposed = model.is_down_transposed if model.has_ffns else None
    assert summary["ffn"]["is_down_transposed"] == is_transposed
    assert summary["ffn"]["predictor_layers"] == (2 if model.predictor_rank else 0)
