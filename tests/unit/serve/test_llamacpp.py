"""What clients of llama-server use, with an engine that plays a script."""

import json
import math
from typing import Any

import pytest

from api_client import Api, embedded_tokenizer, events, running_api
from chat_tokenizers import chat_tokenizer
from fake_engine import FIRST_ID
from powerinfer.serve.fields import Fields
from powerinfer.serve.llamacpp.request import read_prompts

TOKENIZER = embedded_tokenizer()
ONCE = TOKENIZER.encode("Once")


def complete(api: Api, prompt: Any = "Once", **fields: Any) -> Any:
    answer = api.post("/completion", json={"prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(api: Api, **fields: Any) -> list[Any]:
    answer = api.post("/completion", json={"prompt": "Once", "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    return [json.loads(each) for each in events(answer.text)]


def refused(api: Api, path: str = "/completion", **fields: Any) -> dict[str, Any]:
    answer = api.post(path, json=fields)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == 400
    return error


def test_a_whole_answer() -> None:
    with running_api() as api:
        api.fake.num_cached = 1
        answer = complete(api)
    assert answer["content"] == "Hello, world!"
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "eos", "")
    assert answer["model"] == "test-model"
    assert answer["tokens"] == []
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (4, len(ONCE))
    assert answer["timings"]["cache_n"] == 1
    assert answer["timings"]["prompt_n"] == len(ONCE) - 1
    assert "draft_n" not in answer["timings"]
    assert not answer["truncated"]
    assert "completion_probabilities" not in answer


def test_drafts_are_counted_for_each_text() -> None:
    with running_api() as api:
        api.fake.drafts = (7, 3)
        for answer in complete(api, ["Once", "Once"]):
            timings = answer["timings"]
            assert (timings["draft_n"], timings["draft_n_accepted"]) == (7, 3)


def test_a_stream() -> None:
    with running_api() as api:
        *parts, last = streamed(api)
    assert [part["content"] for part in parts] == ["Hello", ",", " world", "!"]
    assert all(len(part["tokens"]) == 1 and not part["stop"] for part in parts)
    assert (last["content"], last["tokens"], last["stop"]) == ("", [], True)
    assert last["tokens_predicted"] == 4


def test_why_a_text_ended() -> None:
    with running_api() as api:
        cut = complete(api, n_predict=2)
        assert (cut["stop_type"], cut["content"], cut["truncated"]) == ("limit", "Hello,", False)
        word = complete(api, stop=["", "wor"])
        assert (word["stop_type"], word["stopping_word"]) == ("word", "wor")


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("Once", ONCE),
        (ONCE, ONCE),
        ([*ONCE, " upon"], [*ONCE, *TOKENIZER.encode(" upon", add_bos=False)]),
        ({"prompt_string": "Once"}, ONCE),
        ("", [TOKENIZER.bos_id]),
    ],
)
def test_prompts(prompt: Any, ids: list[int]) -> None:
    with running_api() as api:
        complete(api, prompt)
        assert list(api.fake.submitted[0].request.prompt_ids) == ids


def test_several_prompts_and_texts_make_a_list() -> None:
    with running_api(lambda request, index: [str(index)]) as api:
        answers = complete(api, ["Once", ONCE, [*ONCE, "x"]], n_cmpl=2)
        assert [answer["index"] for answer in answers] == [*range(6)]
        assert [answer["content"] for answer in answers] == ["0", "1"] * 3
        assert [answer["content"] for answer in complete(api, ["Once"])] == ["0"]


@pytest.mark.parametrize(
    "prompt", [None, [], [[]], [True], 7, [1.5], {"a": 1}, [10**9], [{"multimodal_data": ["x"]}]]
)
def test_prompts_that_are_none(prompt: Any) -> None:
    with running_api() as api:
        assert refused(api, prompt=prompt)["param"] == "prompt"


def test_a_prompt_that_is_too_long_has_an_error_of_its_own_type() -> None:
    with running_api() as api:
        for prompt in ("word " * 5000, ONCE * 5000):
            assert refused(api, prompt=prompt)["type"] == "exceed_context_size_error"


def test_parameters_of_sampling() -> None:
    with running_api() as api:
        complete(
            api,
            temperature=-1,
            top_k=-1,
            top_p=1.5,
            min_p=-0.5,
            repeat_penalty=1.1,
            repeat_last_n=-1,
            seed=-1,
            ignore_eos=True,
            grammar="",
            cache_prompt=False,
            logit_bias=[[5, False], ["Once", 2], ["7", -1.5]],
        )
        request = api.fake.submitted[0].request
        params = request.params
        assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0, 0, 1, 0)
        assert (params.repeat_penalty, params.repeat_last_n) == (1.1, api.fake.context_length)
        assert (params.seed, params.ignore_eos, params.max_tokens) == (None, True, None)
        assert not request.reuses_prefix
        assert not params.has_form
        expected = dict.fromkeys(TOKENIZER.encode("Once", add_bos=False), 2.0)
        assert params.logit_bias == {5: -math.inf, 7: -1.5, **expected}
        complete(api, json_schema={"type": "object"}, seed=-2, logit_bias={"3": 1})
        params = api.fake.submitted[1].request.params
        assert params.has_form
        assert (params.seed, params.logit_bias) == ((1 << 64) - 2, {3: 1.0})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"n_predict": 1.5}, "n_predict must be a whole number"),
        ({"n_probs": 10**6}, "n_probs must be at most"),
        ({"stop": [3]}, "stop must be a text or a list"),
        ({"logit_bias": 3}, "logit_bias must be a list of pairs"),
        ({"logit_bias": [[1, True]]}, "biases that are numbers or false"),
        ({"logit_bias": [[1.5, 1]]}, "tokens that are ids or texts"),
        ({"logit_bias": [[10**9, 1]]}, "there is no token"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "given together"),
        ({"image_data": [1]}, "image_data is not supported"),
        ({"repeat_penalty": 0}, "repeat_penalty must be at least"),
        ({"mirostat": "x"}, "mirostat must be a number"),
        ({"mirostat": 2}, "mirostat 2 is not supported"),
        ({"xtc_probability": 0.5}, "xtc_probability 0.5 is not supported"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with running_api() as api:
        assert message in refused(api, **{"prompt": "Once", **fields})["message"]


def test_samplers_that_do_not_exist_may_do_nothing() -> None:
    neutral = {"mirostat": 0, "typical_p": 1.0, "dry_multiplier": 0, "top_n_sigma": -1}
    with running_api() as api:
        assert complete(api, **neutral)["content"]


def test_probabilities() -> None:
    with running_api() as api:
        answer = complete(api, n_probs=2, n_predict=1)
        (place,) = answer["completion_probabilities"]
        assert [entry["id"] for entry in place["top_logprobs"]] == [FIRST_ID, FIRST_ID + 1]
        assert [entry["logprob"] for entry in place["top_logprobs"]] == [-0.5, -1.5]
        piece = TOKENIZER.piece_bytes(FIRST_ID)
        assert (place["id"], place["bytes"]) == (FIRST_ID, list(piece))
        first, *_, last = streamed(api, n_probs=2)
        assert first["completion_probabilities"] == [place]
        assert "completion_probabilities" not in last


def test_probabilities_of_the_next_token_without_generating_it() -> None:
    with running_api() as api:
        answer = complete(api, n_probs=3, n_predict=0, prompt_logprobs=True)
        assert api.fake.submitted[0].request.params.max_tokens == 1
    assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
    assert len(answer["completion_probabilities"][0]["top_logprobs"]) == 3
    assert [entry["id"] for entry in answer["prompt_probabilities"]] == ONCE[1:]


def test_probabilities_after_the_filters() -> None:
    with running_api() as api:
        fields = {"n_probs": 3, "n_predict": 1, "post_sampling_probs": True, "top_p": 1}
        answer = complete(api, temperature=0.5, top_k=2, min_p=0, **fields)
        greedy = complete(api, temperature=0, **fields)
        sparing = complete(api, temperature=1, top_k=5, min_p=0.2, **fields)
    (place,) = answer["completion_probabilities"]
    # The fake's log probabilities fall by 1 from token to token.
    likeliest = 1 / (1 + math.exp(-2))
    assert [entry["prob"] for entry in place["top_probs"]] == pytest.approx(
        [likeliest, 1 - likeliest]
    )
    assert place["prob"] == pytest.approx(likeliest)
    assert [e["prob"] for e in greedy["completion_probabilities"][0]["top_probs"]] == [1.0]
    # exp(-1) is above 0.2, exp(-2) is not.
    assert len(sparing["completion_probabilities"][0]["top_probs"]) == 2


def test_tokens_of_texts() -> None:
    with running_api() as api:
        plain = api.post("/tokenize", json={"content": "Once"}).json()["tokens"]
        special = api.post("/tokenize", json={"content": "Once", "add_special": True}).json()
        pieces = api.post("/tokenize", json={"content": "é 你", "with_pieces": True}).json()
        assert plain == TOKENIZER.encode("Once", add_bos=False)
        assert special["tokens"] == ONCE
        written = b"".join(
            entry["piece"].encode() if isinstance(entry["piece"], str) else bytes(entry["piece"])
            for entry in pieces["tokens"]
        )
        assert written.decode().strip() == "é 你"
        assert refused(api, "/tokenize")["message"] == "content is missing"


def test_special_tokens_in_texts() -> None:
    with running_api(tokenizer=chat_tokenizer("olmoe")) as api:
        marked = {"content": "<|im_end|>"}
        assert api.post("/tokenize", json=marked).json()["tokens"] == [256]
        plain = api.post("/tokenize", json={**marked, "parse_special": False}).json()["tokens"]
        assert plain == [ord(character) for character in "<|im_end|>"]
        pieces = api.post("/tokenize", json={"content": "é", "with_pieces": True}).json()
        assert [entry["piece"] for entry in pieces["tokens"]] == [[0xC3], [0xA9]]


def test_texts_of_tokens() -> None:
    with running_api() as api:
        assert api.post("/detokenize", json={"tokens": []}).json() == {"content": ""}
        text = api.post("/detokenize", json={"tokens": ONCE}).json()["content"]
        assert text.endswith("Once")
        assert text.startswith(TOKENIZER.piece(ONCE[0]))
        for tokens in (["a"], [-1], [10**9], [1.5], "Once"):
            refused(api, "/detokenize", tokens=tokens)


def test_properties() -> None:
    with running_api(tokenizer=chat_tokenizer("olmoe"), parallel=3) as api:
        properties = api.get("/props").json()
        tokenizer = api.model.tokenizer
    assert properties["default_generation_settings"]["n_ctx"] == 512
    assert properties["total_slots"] == 3
    assert properties["chat_template"] == tokenizer.chat_template
    assert properties["eos_token"] == "<|im_end|>"
    with running_api(is_loading=True) as api:
        answer = api.get("/props")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, 503)


def test_errors_of_openais_route_keep_their_shape() -> None:
    with running_api() as api:
        error = api.post("/completions", json={}).json()["error"]
        assert error["code"] == "missing_required_parameter"


def test_half_a_prompt_costs_no_more_than_the_context() -> None:
    with running_api() as api:
        long = Fields({"prompt": ["word " * 100] * 10_000})
        with pytest.raises(Exception, match="at most 2048 prompts"):
            read_prompts(long, api.model)
