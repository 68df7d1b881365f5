"""The engine on tiny models, computed by the numpy reference."""

import codecs
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE_S
from powerinfer import LLM, PowerInferError, PromptError, SamplingParams, UnsupportedError
from powerinfer.engine.llm import Prompt
from powerinfer.errors import GGUFError, NumericsError
from powerinfer.gguf import open_gguf, write_gguf
from powerinfer.sampling.sampler import Sampler
from powerinfer.tokenizer import Tokenizer
from tiny_models import TINY_MODELS, write_model

pytestmark = pytest.mark.usefixtures("no_end_tokens")

GREEDY = SamplingParams(temperature=0, max_tokens=12)
OpenLLM = Callable[..., LLM]


@pytest.fixture
def open_llm(tiny: Path) -> OpenLLM:
    def opened(path: Path = tiny, **options: Any) -> LLM:
        return LLM(path, kernels="reference", **options)

    return opened


def by_hand(llm: LLM, prompt_ids: list[int], count: int) -> list[int]:
    """Greedy decoding without any cache: everything is computed anew for every token."""
    ids = list(prompt_ids)
    for _ in range(count):
        ids.append(int(np.argmax(llm.new_sequence().extend(ids))))
    return ids[len(prompt_ids) :]


def test_greedy_equals_computing_everything_anew(open_llm: OpenLLM) -> None:
    with open_llm() as llm:
        result = llm.generate("hello world", GREEDY)[0]
        assert result.token_ids == by_hand(llm, llm.encode("hello world"), 12)
    assert result.finish_reason == "length"
    assert result.metrics.decode_tokens == 12
    assert result.metrics.decode_steps == 11


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_batches_of_the_prompt_change_nothing(open_llm: OpenLLM, batch_size: int) -> None:
    wanted = open_llm().generate("hello world", GREEDY)[0].token_ids
    assert open_llm(batch_size=batch_size).generate("hello world", GREEDY)[0].token_ids == wanted


def test_scored_logits_are_those_of_each_position(open_llm: OpenLLM) -> None:
    llm = open_llm(batch_size=4)
    ids = llm.encode("hello world")
    scored = llm.new_sequence().extend_scored(ids, 6)
    for back in range(6):
        alone = llm.new_sequence().extend(ids[: len(ids) - back])
        np.testing.assert_allclose(scored[-1 - back], alone, rtol=1e-4, atol=1e-5)


def test_seed_and_prompt_alone_decide_the_text(open_llm: OpenLLM) -> None:
    params = SamplingParams(seed=11, max_tokens=20)
    llm = open_llm()
    first, second = llm.generate(["hello", "world"], params)
    assert llm.generate("world", params)[0].token_ids == second.token_ids
    assert open_llm().generate("hello", params)[0].token_ids == first.token_ids
    assert llm.generate("hello", replace(params, seed=12))[0].token_ids != first.token_ids
    free = llm.generate("hello", replace(params, seed=None))[0]
    assert llm.generate("hello", replace(params, seed=free.seed))[0].token_ids == free.token_ids


def test_prompts_as_text_bytes_and_ids(open_llm: OpenLLM) -> None:
    llm = open_llm()
    ids = llm.encode("hello")
    wanted = llm.generate("hello", GREEDY)[0].token_ids
    assert llm.generate(b"hello", GREEDY)[0].token_ids == wanted
    assert llm.generate(ids, GREEDY)[0].token_ids == wanted
    both: list[Prompt] = [ids, "hello"]
    assert [result.token_ids for result in llm.generate(both, GREEDY)] == [wanted, wanted]


def test_no_tokens_asked_for_reads_the_prompt_only(open_llm: OpenLLM) -> None:
    result = open_llm().generate("hello", SamplingParams(max_tokens=0))[0]
    assert (result.text, result.token_ids, result.finish_reason) == ("", [], "length")
    assert result.metrics.prefill_tokens > 0
    assert result.metrics.decode_tokens_per_s is None


def test_stream_gives_the_text_of_generate_in_whole_characters(open_llm: OpenLLM) -> None:
    params = SamplingParams(seed=5, temperature=3.0, max_tokens=60, top_k=0, min_p=0.0)
    llm = open_llm()
    pieces = list(llm.stream("héllo", params))
    whole = llm.generate("héllo", params)[0]
    assert "".join(pieces) == whole.text
    assert all(pieces)
    prompt = llm.encode("héllo")
    decode = llm.loaded.tokenizer.decode_bytes
    behind = decode(prompt + whole.token_ids)[len(decode(prompt)) :]
    assert whole.text == codecs.getincrementaldecoder("utf-8")("replace").decode(behind)


@pytest.mark.parametrize(("ends", "text"), [(False, "a"), (True, "a\ufffd")])
def test_a_character_the_limit_cuts_is_left_out(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch, *, ends: bool, text: str
) -> None:
    """What the model itself leaves unfinished is reported, though."""
    llm = open_llm()
    tokenizer = llm.loaded.tokenizer
    (letter,) = tokenizer.encode("ba", add_bos=False)[-1:]
    first_byte, second_byte = tokenizer.encode("é", add_bos=False)[-2:]
    if ends:
        monkeypatch.setattr(Tokenizer, "eog_ids", property(lambda _: frozenset([2])))
    chosen = iter([letter, first_byte, 2 if ends else second_byte])
    monkeypatch.setattr(Sampler, "sample", lambda *_: next(chosen))
    result = llm.generate("hello", replace(GREEDY, max_tokens=3 if ends else 2))[0]
    assert (result.text, result.token_ids) == (text, [letter, first_byte])
    assert result.finish_reason == ("stop" if ends else "length")


@pytest.mark.parametrize("path", [3, "", b"x", ["model.gguf"]])
def test_a_value_that_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(GGUFError, match="expected the path of a GGUF file"):
        LLM(path)


def test_stop_string_across_tokens_is_cut(open_llm: OpenLLM) -> None:
    llm = open_llm()
    params = SamplingParams(seed=3, max_tokens=40)
    text = llm.generate("hello", params)[0].text
    stop = text[10:14]
    result = llm.generate("hello", replace(params, stop=[stop, "never there"]))[0]
    assert result.text == text[: text.index(stop)]
    assert result.finish_reason == "stop"
    assert list(llm.stream("hello", replace(params, stop=stop)))[-1] != ""


def test_end_token_stops_and_is_not_part_of_the_result(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = open_llm()
    params = SamplingParams(seed=5, max_tokens=12)
    ids = llm.generate("hello", params)[0].token_ids
    end = next(token_id for token_id in ids[1:] if token_id != ids[0])
    monkeypatch.setattr(Tokenizer, "eog_ids", property(lambda _: frozenset({end})))
    result = llm.generate("hello", params)[0]
    assert result.token_ids == ids[: ids.index(end)]
    assert result.finish_reason == "stop"
    ignoring = llm.generate("hello", replace(params, ignore_eos=True))[0]
    assert end not in ignoring.token_ids
    assert ignoring.finish_reason == "length"


def test_prompt_longer_than_the_context_is_an_error(open_llm: OpenLLM) -> None:
    llm = open_llm(context_length=8)
    with pytest.raises(PromptError, match="prompt has 12 tokens, the context holds 8"):
        llm.generate(list(range(3, 15)), GREEDY)
    # A prompt that fills it leaves room for one token, whose keys are never needed.
    result = llm.generate(list(range(3, 11)), replace(GREEDY, max_tokens=1))[0]
    assert len(result.token_ids) == 1


@pytest.mark.parametrize("limit", [7, 1000, None])
def test_a_full_context_ends_the_text(open_llm: OpenLLM, limit: int | None) -> None:
    llm = open_llm(context_length=8)
    prompt = [1, 5, 6]
    # The context holds five more tokens, and the last one's keys are never needed.
    wanted = llm.generate(prompt, replace(GREEDY, max_tokens=6))[0]
    found = llm.generate(prompt, replace(GREEDY, max_tokens=limit))[0]
    assert (found.text, found.token_ids) == (wanted.text, wanted.token_ids)
    assert (len(found.token_ids), found.finish_reason) == (6, "length")


def test_context_shift_goes_on(open_llm: OpenLLM) -> None:
    llm = open_llm(context_length=8, context_shift=True)
    result = llm.generate([1, 5, 6], replace(GREEDY, max_tokens=50, ignore_eos=True))[0]
    assert len(result.token_ids) == 50


@pytest.mark.parametrize("keep_tokens", [0, 1, 5, 6])
def test_any_number_of_kept_tokens_that_is_accepted_can_be_kept(
    open_llm: OpenLLM, keep_tokens: int
) -> None:
    llm = open_llm(context_length=8, context_shift=True, keep_tokens=keep_tokens)
    assert len(llm.generate([1, 5, 6], replace(GREEDY, max_tokens=50))[0].token_ids) == 50


def test_what_leaves_nothing_to_drop_is_refused_before_loading(open_llm: OpenLLM) -> None:
    with pytest.raises(PromptError, match=r"first 7 are kept; at most 6 .*\(keep_tokens\)"):
        open_llm(context_length=8, context_shift=True, keep_tokens=7)
    with pytest.raises(PromptError, match="first 1 are kept; at most 0"):
        open_llm(context_length=2, context_shift=True)
    open_llm(context_length=8, keep_tokens=7)


def test_reused_prefix_computes_only_what_is_new(open_llm: OpenLLM) -> None:
    llm = open_llm(reuse_prefix=True)
    first = llm.generate([1, 5, 6, 7], GREEDY)[0]
    longer = [1, 5, 6, 7, *first.token_ids[:5], 40, 41]
    second = llm.generate(longer, GREEDY)[0]
    # What was generated is prompt now, and is computed as such.
    assert second.metrics.prefill_tokens == 7
    assert second.token_ids == open_llm().generate(longer, GREEDY)[0].token_ids
    again = llm.generate([1, 5], GREEDY)[0]
    assert again.metrics.prefill_tokens == 1
    assert open_llm().generate([1, 5], GREEDY)[0].token_ids == again.token_ids
    llm.generate(longer, GREEDY)
    more = llm.generate([*longer, 42], GREEDY)[0]
    assert more.metrics.prefill_tokens == 1


def test_marked_answers_keep_their_keys_and_values_and_their_bits(open_llm: OpenLLM) -> None:
    """Of a prompt that goes on with what was generated, whoever computes it."""
    keeping, fresh = open_llm(reuse_prefix=True), open_llm()
    params = replace(GREEDY, logprobs=0)
    first = keeping.generate([1, 5, 6, 7], params)[0]
    longer = [1, 5, 6, 7, *first.token_ids[:5], 40, 41]
    marks = [True] * 4 + [False] * 5 + [True] * 2
    found = []
    for llm in (keeping, fresh):
        with llm.stream(longer, params, is_prompt=marks) as stream:
            list(stream)
        found.append(stream.generation)
    assert found[0].logprobs == found[1].logprobs
    assert found[0].metrics.prefill_tokens == 2
    assert found[1].metrics.prefill_tokens == len(longer)


def test_a_new_stream_leaves_the_one_before(open_llm: OpenLLM) -> None:
    llm = open_llm()
    long = replace(GREEDY, max_tokens=30)
    first = llm.stream("hello", long)
    pieces = [next(first)]
    found = llm.generate("world", GREEDY)[0].token_ids
    pieces += first
    assert "".join(pieces) == open_llm().generate("hello", long)[0].text
    assert open_llm().generate("world", GREEDY)[0].token_ids == found


def test_a_stream_outlives_its_model_only_as_an_error(open_llm: OpenLLM) -> None:
    llm = open_llm()
    stream = llm.stream("hello", replace(GREEDY, max_tokens=30))
    text = next(stream)
    llm.close()
    with pytest.raises(PowerInferError, match="the LLM was closed before"):
        next(stream)
    assert stream.generation.text == text


def test_a_stream_that_had_ended_stays_ended(open_llm: OpenLLM) -> None:
    llm = open_llm()
    closed, done = llm.stream("world", GREEDY), llm.stream("hello", GREEDY)
    next(closed)
    closed.close()
    text = "".join(done)
    llm.generate("world", GREEDY)
    assert list(closed) == []
    assert list(done) == []
    assert done.generation.text == text


def test_a_stream_that_has_not_begun_is_in_nobodys_way(open_llm: OpenLLM) -> None:
    llm = open_llm()
    first, second = llm.stream("hello", GREEDY), llm.stream("world", GREEDY)
    texts = "".join(second), "".join(first)
    assert texts == tuple(llm.generate(prompt, GREEDY)[0].text for prompt in ("world", "hello"))


def test_threads_wait_for_each_other(open_llm: OpenLLM) -> None:
    llm = open_llm()
    prompts = ["hello", "world", "a", "héllo wörld"] * 3
    wanted = [llm.generate(prompt, GREEDY)[0].token_ids for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = pool.map(lambda prompt: llm.generate(prompt, GREEDY)[0].token_ids, prompts)
        assert list(found) == wanted


def test_threads_may_share_a_stream(open_llm: OpenLLM) -> None:
    llm = open_llm()
    stream = llm.stream("hello", GREEDY)
    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(list, stream) for _ in range(4)]
        pieces = [piece for part in parts for piece in part.result(PATIENCE_S)]
    text = llm.generate("hello", GREEDY)[0].text
    assert sorted("".join(pieces)) == sorted(text)
    assert stream.generation.text == text


def test_interrupted_step_leaves_a_usable_sequence(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = open_llm(reuse_prefix=True)
    stream = llm.stream("hello", replace(GREEDY, max_tokens=50))
    next(stream)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(llm.loaded.model.ops), "attention", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    prompt = [*llm.encode("hello"), *stream.generation.token_ids]
    wanted = open_llm().generate(prompt, GREEDY)[0].token_ids
    assert llm.generate(prompt, GREEDY)[0].token_ids == wanted


def test_q8_cache_is_near_the_f16_one(tmp_path: Path, open_llm: OpenLLM) -> None:
    recipe = replace(TINY_MODELS["llama"], head_dim=32)
    path = write_model(tmp_path / "wide.gguf", recipe)
    ids = [1, *range(3, 40)]
    f16 = open_llm(path).new_sequence().extend(ids)
    q8 = open_llm(path, kv_type="q8_0").new_sequence().extend(ids)
    assert not np.array_equal(f16, q8)
    # Q8_0 rounds to 1/254 of a block's largest value; logits of this model are about 1.
    np.testing.assert_allclose(f16, q8, atol=0.05)


def test_bytes_per_token_are_weights_and_cache(open_llm: OpenLLM) -> None:
    llm = open_llm()
    result = llm.generate([1, 5, 6], replace(GREEDY, max_tokens=2))[0]
    model = llm.loaded.model
    assert result.metrics.decode_steps == 1
    assert result.metrics.bytes_per_token == model.bytes_per_token(3)


def test_cache_bytes_stop_growing_at_the_sliding_window(tmp_path: Path, open_llm: OpenLLM) -> None:
    llm = open_llm(write_model(tmp_path / "window.gguf", TINY_MODELS["llama-window"]))
    result = llm.generate([1, *range(3, 40)], replace(GREEDY, max_tokens=2))[0]
    assert result.metrics.bytes_per_token == llm.loaded.model.bytes_per_token(7)


def test_sparse_model_counts_active_neurons(tmp_path: Path, open_llm: OpenLLM) -> None:
    path = write_model(tmp_path / "drelu.gguf", TINY_MODELS["llama-drelu-transposed"])
    exact = open_llm(path)
    assert exact.loaded.model.sparsity == "exact"
    off = open_llm(path, sparsity="off")
    found, dense = (llm.generate("hello", GREEDY)[0] for llm in (exact, off))
    assert found.token_ids == dense.token_ids
    share = found.metrics.active_share
    assert share is not None
    assert 0 < share < 1
    assert dense.metrics.active_share == 1
    assert (found.metrics.bytes_per_token or 0) < (dense.metrics.bytes_per_token or 0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"treads": 2}, UnsupportedError, "Did you mean 'threads'"),
        ({"threads": 0}, PromptError, "threads must be a whole number from 1 to 512, got 0"),
        ({"threads": 513}, PromptError, "threads"),
        ({"context_length": 0}, PromptError, "context_length"),
        ({"context_length": 1.5}, PromptError, "context_length"),
        ({"batch_size": 0}, PromptError, "batch_size"),
        ({"keep_tokens": -1}, PromptError, "keep_tokens"),
        ({"kv_type": "f8"}, UnsupportedError, "KV cache type 'f8'.*Supported: f16, q8_0"),
        ({"kv_type": None}, UnsupportedError, "KV cache type None"),
        ({"kv_type": "q8_0"}, UnsupportedError, "multiple of 32; this model's are 8 wide: use f16"),
        ({"activation": 5}, UnsupportedError, "activation '5'"),
        ({"activation": "rleu"}, UnsupportedError, "Did you mean 'relu'"),
        ({"activation": "fatrelu"}, UnsupportedError, "fatrelu:0.01"),
        ({"activation": "relu:1"}, UnsupportedError, "no threshold"),
        ({"sparsity": "auto"}, UnsupportedError, "ReLU family"),
        ({"sparsity": "onn"}, UnsupportedError, "sparsity 'onn'"),
        ({"sparsity": "exact"}, UnsupportedError, "ReLU family"),
    ],
)
def test_bad_options_say_what_is_wanted(
    open_llm: OpenLLM, options: dict[str, Any], error: type[PowerInferError], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_llm(**options)


def test_bad_prompts(open_llm: OpenLLM) -> None:
    llm = open_llm()
    with pytest.raises(PromptError, match="from 0 to 287"):
        llm.generate([1, 288])
    with pytest.raises(PromptError, match="from 0 to 287"):
        llm.generate([-1])
    assert llm.encode("") == [1]
    for wrong in (None, 5, ["a", None], [1.5], [["a"]], {"a": 1}.items()):
        with pytest.raises(PromptError, match="a list of token ids, got"):
            llm.generate(wrong)  # type: ignore[arg-type]


def test_ids_of_numpy_are_one_prompt(open_llm: OpenLLM) -> None:
    llm = open_llm()
    ids = np.array([1, 5, 6])
    wanted = llm.generate([1, 5, 6], GREEDY)[0].token_ids
    assert [found.token_ids for found in llm.generate(ids, GREEDY)] == [wanted]


def test_empty_prompt_needs_a_bos_token(open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "add_bos", property(lambda _: False))
    assert open_llm().encode("") == [1]
    monkeypatch.setattr(Tokenizer, "bos_id", property(lambda _: None))
    with pytest.raises(PromptError, match="no BOS token"):
        open_llm().generate("")


def test_closed_model_says_so(open_llm: OpenLLM) -> None:
    with open_llm() as llm:
        pass
    with pytest.raises(PowerInferError, match="closed"):
        llm.generate("a")


@pytest.mark.parametrize(
    ("tensor", "where"),
    [
        ("token_embd.weight", "token embedding"),
        ("blk.1.attn_v.weight", r"layer 1 \(attention\)"),
        ("blk.0.ffn_up.weight", r"layer 0 \(FFN\)"),
        ("output.weight", "output head"),
    ],
)
def test_nan_weights_name_the_first_layer(
    tmp_path: Path, tiny: Path, open_llm: OpenLLM, tensor: str, where: str
) -> None:
    path = rewritten(tiny, tmp_path / "nan.gguf", {}, nan_in=tensor)
    with pytest.raises(NumericsError, match=f"first produced by {where}"):
        open_llm(path).generate("hello", GREEDY)


def rewritten(
    source: Path, target: Path, metadata: dict[str, Any], nan_in: str | None = None
) -> Path:
    """A copy of a model with other metadata, or with NaN in one tensor."""
    file = open_gguf(source)
    tensors = []
    for name, tensor in file.tensors.items():
        data = tensor.data.copy()
        if name == nan_in:
            data.view(np.float32)[:] = np.nan
        tensors.append((name, tensor.shape, tensor.format, data.tobytes()))
    write_gguf(target, {**file.metadata, **metadata}, tensors)
    return target
