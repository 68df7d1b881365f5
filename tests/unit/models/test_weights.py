"""Finding tensors: everything missing at once, shapes, fused and transposed forms, predictors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from powerinfer.errors import GGUFError, PromptError, UnsupportedError
from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, open_gguf, write_gguf
from powerinfer.kvcache import KVCache
from powerinfer.models import Model, find_nonfinite_layer, kv_bytes_per_position, load_model
from powerinfer.models.architecture import architecture_names
from powerinfer.models.blocks import Observer
from powerinfer.ops.protocol import KVType, MatrixUse
from powerinfer.ops.reference.ops import ReferenceMatrix, ReferenceOps
from powerinfer.values import Batch, FloatArray
from rewritten_models import numbers, rewrite, spec
from tiny_models import TINY_MODELS, write_model
from tolerances import assert_close

TOKEN_IDS = [1, 40, 77, 200, 5, 13, 280]


def logits_of(file: GGUFFile) -> FloatArray:
    model = load_model(file, ReferenceOps())
    cache = model.new_cache()
    return model.forward(cache.batch([(0, TOKEN_IDS, 0)], [True]), cache)


class _RecordingOps(ReferenceOps):
    """Remembers the `use` that each matrix of block 0 was prepared for."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: dict[str, MatrixUse] = {}

    def matrix(self, tensor: Tensor, use: MatrixUse) -> ReferenceMatrix:
        if tensor.name.startswith("blk.0.ffn_"):
            self.uses[tensor.name.removeprefix("blk.0.").removesuffix(".weight")] = use
        return super().matrix(tensor, use)


@pytest.mark.parametrize(
    ("name", "sparsity", "neurons"),
    [
        ("bamboo", "exact", {"ffn_gate", "ffn_up", "ffn_down_t"}),
        ("bamboo", "lowbit:2", {"ffn_gate", "ffn_up", "ffn_down_t"}),
        ("bamboo", "off", set()),
        ("arcee", "exact", {"ffn_up"}),
    ],
)
def test_rows_that_may_be_skipped_are_neurons(
    tmp_path: Path, name: str, sparsity: str, neurons: set[str]
) -> None:
    ops = _RecordingOps()
    load_model(
        open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS[name])), ops, sparsity=sparsity
    )
    assert {tensor for tensor, use in ops.uses.items() if use is MatrixUse.NEURONS} == neurons


def test_the_table_has_a_row_per_architecture() -> None:
    assert set(architecture_names()) == {model.architecture for model in TINY_MODELS.values()}


@pytest.mark.parametrize("name", TINY_MODELS)
def test_every_tiny_model_runs(name: str, tmp_path: Path) -> None:
    logits = logits_of(open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS[name])))
    assert logits.shape == (len(TOKEN_IDS), 288)
    assert np.isfinite(logits).all()
    assert logits.std() > 0.1


def test_all_missing_tensors_are_listed_at_once(tmp_path: Path) -> None:
    gone = {"blk.0.attn_k.weight", "blk.1.ffn_norm.weight", "output_norm.weight"}
    file = rewrite(tmp_path, TINY_MODELS["llama"], lambda t: None if t.name in gone else spec(t))
    with pytest.raises(GGUFError) as caught:
        load_model(file, ReferenceOps())
    assert all(name in str(caught.value) for name in gone)


def test_a_long_list_of_missing_tensors_is_cut(tmp_path: Path) -> None:
    embedding = "token_embd.weight"
    file = rewrite(
        tmp_path, TINY_MODELS["llama"], lambda t: spec(t) if t.name == embedding else None
    )
    with pytest.raises(GGUFError, match=r"missing tensors: .* and \d+ more$"):
        load_model(file, ReferenceOps())


def test_a_file_without_weights_has_no_list_of_them(tmp_path: Path) -> None:
    file = rewrite(tmp_path, TINY_MODELS["llama"], lambda _: None)
    with pytest.raises(GGUFError, match=r"the file has only a vocabulary, no weights$"):
        load_model(file, ReferenceOps())


def test_required_biases_are_required(tmp_path: Path) -> None:
    file = rewrite(
        tmp_path, TINY_MODELS["qwen2"], lambda t: None if t.name.endswith("k.bias") else spec(t)
    )
    with pytest.raises(GGUFError, match=r"blk\.0\.attn_k\.bias, blk\.1\.attn_k\.bias"):
        load_model(file, ReferenceOps())


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "blk.1.attn_q.weight", "blk.0.ffn_down.weight"]
)
def test_a_wrong_shape_is_named(name: str, tmp_path: Path) -> None:
    def change(tensor: Tensor) -> TensorSpec:
        return numbers(name, tensor.decode()[1:]) if tensor.name == name else spec(tensor)

    with pytest.raises(GGUFError, match=rf"{name} \[\d+, \d+\], not \[\d+, \d+\]"):
        load_model(rewrite(tmp_path, TINY_MODELS["llama"], change), ReferenceOps())


def test_unknown_tensors_are_tolerated(tmp_path: Path) -> None:
    plain = write_model(tmp_path / "a.gguf", TINY_MODELS["llama"])
    file = open_gguf(plain)
    extra = numbers("blk.0.mystery", np.ones((3, 5), np.float32))
    tensors = [*map(spec, file.tensors.values()), extra]
    write_gguf(tmp_path / "b.gguf", file.metadata, tensors)
    np.testing.assert_array_equal(logits_of(open_gguf(tmp_path / "b.gguf")), logits_of(file))


def test_transposed_down_is_the_same_model(tmp_path: Path) -> None:
    def change(tensor: Tensor) -> TensorSpec:
        if not tensor.name.endswith("ffn_down.weight"):
            return spec(tensor)
        return numbers(tensor.name.replace("down", "down_t"), tensor.decode().T)

    plain = TINY_MODELS["llama-relu"]
    file = rewrite(tmp_path, plain, change)
    expected = logits_of(open_gguf(tmp_path / "plain.gguf"))
    assert_close(logits_of(file), expected, "exact sparse")


def test_fused_qkv_is_the_same_model(tmp_path: Path) -> None:
    file = open_gguf(write_model(tmp_path / "fused.gguf", TINY_MODELS["llama-fused"]))
    tensors: list[TensorSpec] = []
    for tensor in file.tensors.values():
        if "attn_qkv" not in tensor.name:
            tensors.append(spec(tensor))
            continue
        parts = np.split(tensor.decode(), [32, 40])
        for letter, part in zip("qkv", parts, strict=True):
            tensors.append(numbers(tensor.name.replace("qkv", letter), part))
    write_gguf(tmp_path / "split.gguf", file.metadata, tensors)
    np.testing.assert_array_equal(logits_of(open_gguf(tmp_path / "split.gguf")), logits_of(file))


def test_predictors_are_remembered(tmp_path: Path) -> None:
    file = open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS["bamboo"]))
    predictors = load_model(file, ReferenceOps()).weights.mlp
    assert [(fc1.shape, fc2.shape) for fc1, fc2 in predictors.values()] == [
        ((16, 32), (48, 16))
    ] * 2


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    file = open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS["llama"]))
    reports: list[tuple[int, int]] = []
    load_model(file, ReferenceOps(), progress=lambda done, total: reports.append((done, total)))
    assert reports == sorted(reports)
    assert reports[-1][0] == reports[-1][1] == sum(t.num_bytes for t in file.tensors.values())


def test_sparsity_follows_the_activation(tmp_path: Path) -> None:
    ops = ReferenceOps()
    silu = open_gguf(write_model(tmp_path / "silu.gguf", TINY_MODELS["llama"]))
    relu = open_gguf(write_model(tmp_path / "relu.gguf", TINY_MODELS["llama-relu"]))
    assert load_model(silu, ops).sparsity == "off"
    assert load_model(relu, ops).sparsity == "exact"
    assert load_model(relu, ops, sparsity="off").sparsity == "off"
    with pytest.raises(UnsupportedError, match="silu"):
        load_model(silu, ops, sparsity="exact")
    with pytest.raises(UnsupportedError, match=r"exact.*off"):
        load_model(relu, ops, sparsity="exakt")


def test_context_length(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])
    assert load_model(open_gguf(path), ReferenceOps()).context_length == 160
    assert load_model(open_gguf(path), ReferenceOps(), context_length=10).context_length == 10
    assert not caplog.records
    assert load_model(open_gguf(path), ReferenceOps(), context_length=200).context_length == 200
    assert "made for 160" in caplog.text
    with pytest.raises(PromptError, match="at least 1"):
        load_model(open_gguf(path), ReferenceOps(), context_length=0)


def test_bytes_per_token(tmp_path: Path) -> None:
    """Every matrix once, one embedding row, the norms, and the keys and values read."""
    model_path = write_model(tmp_path / "m.gguf", TINY_MODELS["llama-relu"])
    file = open_gguf(model_path)
    model = load_model(file, ReferenceOps())
    weights = sum(t.num_bytes for t in file.tensors.values())
    embedding = file.tensors["token_embd.weight"].num_bytes
    row = 2 * 2 * 2 * 8 * 2
    assert kv_bytes_per_position(model.config, KVType.F16) == row
    assert model.bytes_per_token(10) == weights - embedding + 32 * 4 + 10 * row
    assert model.bytes_per_token(10, ffn_bytes=0.0) == model.bytes_per_token(10) - model.ffn_bytes


def test_window_limits_the_bytes(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", TINY_MODELS["llama-window"])
    model = load_model(open_gguf(path), ReferenceOps())
    assert model.bytes_per_token(100) == model.bytes_per_token(7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "token embedding"),
        ("blk.0.attn_v.weight", "layer 0 (attention)"),
        ("blk.1.attn_output.weight", "layer 1 (attention)"),
        ("blk.0.ffn_up.weight", "layer 0 (FFN)"),
        ("blk.1.ffn_down.weight", "layer 1 (FFN)"),
        ("output.weight", "output head"),
    ],
)
@pytest.mark.parametrize("recipe", ["llama", "llama-relu", "nemotron"])
def test_the_first_nonfinite_layer_is_named(
    recipe: str, name: str, expected: str, bad: float, tmp_path: Path
) -> None:
    def change(tensor: Tensor) -> TensorSpec:
        if tensor.name != name:
            return spec(tensor)
        values = tensor.decode()
        values[:] = bad
        return numbers(name, values)

    model = load_model(rewrite(tmp_path, TINY_MODELS[recipe], change), ReferenceOps())
    assert find_nonfinite_layer(model, TOKEN_IDS) == expected


def test_a_sound_model_has_no_nonfinite_layer(tmp_path: Path) -> None:
    file = open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS["llama"]))
    assert find_nonfinite_layer(load_model(file, ReferenceOps()), TOKEN_IDS) is None


def test_the_checking_pass_computes_tokens_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompt as prompt, generated tokens as generated: what overflowed does so again."""
    file = open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS["llama"]))
    model, seen = load_model(file, ReferenceOps()), list[tuple[int, bool]]()
    compute = Model.forward

    def forward(model: Model, batch: Batch, cache: KVCache, **options: Observer) -> FloatArray:
        marks = np.zeros(batch.num_tokens, bool) if batch.is_prompt is None else batch.is_prompt
        seen.extend(zip(batch.token_ids.tolist(), marks.tolist(), strict=True))
        return compute(model, batch, cache, observe=options["observe"])

    monkeypatch.setattr(Model, "forward", forward)
    marks = [True, True, False, False, True]
    assert find_nonfinite_layer(model, [5, 6, 7, 8, 9], KVType.F16, marks) is None
    assert seen == list(zip([5, 6, 7, 8, 9], marks, strict=True))


def test_rope_divisors_must_be_positive(tmp_path: Path) -> None:
    file = open_gguf(write_model(tmp_path / "a.gguf", TINY_MODELS["llama"]))
    zero = numbers("rope_freqs.weight", np.zeros(4, np.float32))
    write_gguf(tmp_path / "b.gguf", file.metadata, [*map(spec, file.tensors.values()), zero])
    with pytest.raises(GGUFError, match=r"rope_freqs\.weight"):
        load_model(open_gguf(tmp_path / "b.gguf"), ReferenceOps())


def test_q8_0_cache_needs_heads_of_whole_blocks(tmp_path: Path) -> None:
    recipe = replace(TINY_MODELS["llama"], head_dim=24)
    model = load_model(open_gguf(write_model(tmp_path / "m.gguf", recipe)), ReferenceOps())
    with pytest.raises(UnsupportedError, match="head"):
        model.new_cache(10, KVType.Q8_0)
