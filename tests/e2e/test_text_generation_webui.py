"""What the llama.cpp loader of text-generation-webui asks of its server, request by request."""

import json
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from patience import PATIENCE_S
from serving import Server, serving

# The flags that it starts its server with, but for the port and the model, which is ours.
FLAGS = (
    *("--batch-size", "1024", "--ubatch-size", "1024", "--no-webui", "--flash-attn", "on"),
    *("--ctx-size", "512", "--gpu-layers", "0", "--fit", "off", "--threads", "1"),
    *("--parallel", "1"),
)
# Its sampling settings as they stand when nothing was touched.
NEUTRAL: dict[str, Any] = {
    "temperature": 0.6,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0,
    "top_n_sigma": -1,
    "adaptive_target": -1,
    "adaptive_decay": 0.9,
    "typical_p": 1,
    "repeat_penalty": 1,
    "repeat_last_n": 1024,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 1024,
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "mirostat": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "grammar": "",
    "seed": -1,
    "ignore_eos": False,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "samplers": [
        *("penalties", "dry", "top_n_sigma", "temperature", "top_k", "top_p", "typ_p", "min_p"),
        "xtc",
    ],
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(*FLAGS) as running:
        yield running
        # It ends its server so, and waits five seconds.
        assert running.stop(signal.SIGTERM) == 0


@pytest.fixture(scope="module")
def session(server: Server) -> Iterator[httpx.Client]:
    """One connection for everything, as it has."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as made:
        yield made


def post(session: httpx.Client, path: str, body: Any) -> Any:
    answer = session.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def encode(session: httpx.Client, text: str, *, add_bos: bool) -> list[int]:
    body = {"content": text, "add_special": add_bos}
    tokens: list[int] = post(session, "/tokenize", body)["tokens"]
    return tokens


def generate(session: httpx.Client, prompt: str, limit: int, **fields: Any) -> Iterator[Any]:
    """The events of a stream, up to the one that ends it."""
    body = {**NEUTRAL, **fields, "prompt": encode(session, prompt, add_bos=True)}
    body |= {"n_predict": limit, "stream": True, "cache_prompt": True}
    with session.stream("POST", "/completion", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line:
                continue
            data = json.loads(line.removeprefix("data: "))
            yield data
            if data.get("stop", False):
                break


def test_what_it_asks_at_the_start(session: httpx.Client) -> None:
    assert session.get("/health").status_code == 200
    model = session.get("/v1/models").json()["data"][0]
    assert model["meta"]["n_vocab"] == 4096
    properties = session.get("/props").json()
    assert properties["default_generation_settings"]["n_ctx"] == 512
    bos = properties["bos_token"]
    first = encode(session, "Once", add_bos=True)[0]
    assert post(session, "/detokenize", {"tokens": [first]})["content"] == bos
    assert encode(session, "Once", add_bos=False)[0] != first


def test_a_text_piece_by_piece(session: httpx.Client) -> None:
    parts = list(generate(session, "Once upon a time", 20, seed=7))
    text = "".join(part.get("content", "") for part in parts)
    assert text
    assert parts[-1]["tokens_predicted"] <= 20
    again = "".join(part["content"] for part in generate(session, "Once upon a time", 20, seed=7))
    assert again == text


def test_the_same_text_at_once(session: httpx.Client) -> None:
    fields = {**NEUTRAL, "seed": 7, "n_predict": 20, "stream": False}
    body = {**fields, "prompt": encode(session, "Once upon a time", add_bos=True)}
    whole = post(session, "/completion", body)
    parts = generate(session, "Once upon a time", 20, seed=7)
    assert whole["content"] == "".join(part["content"] for part in parts)


def test_it_may_stop_reading(session: httpx.Client) -> None:
    for part in generate(session, "Once", 400, ignore_eos=True):
        assert part["content"] is not None
        break
    assert list(generate(session, "Once", 3))[-1]["stop"]


def test_tokens_that_are_banned(session: httpx.Client) -> None:
    first = next(generate(session, "Once upon a", 1, temperature=0))
    (banned,) = first["tokens"]
    bias = [[banned, False], [5, 0.5]]
    other = next(generate(session, "Once upon a", 1, temperature=0, logit_bias=bias))
    assert other["tokens"] != [banned]


def test_probabilities_in_a_stream(session: httpx.Client) -> None:
    parts = list(generate(session, "Once", 4, n_probs=3))
    places = [place for part in parts for place in part.get("completion_probabilities", ())]
    assert len(places) == parts[-1]["tokens_predicted"]
    assert all(len(place["top_logprobs"]) == 3 for place in places)


@pytest.mark.parametrize("use_samplers", [False, True])
def test_the_next_token(session: httpx.Client, *, use_samplers: bool) -> None:
    body = {
        **NEUTRAL,
        "prompt": encode(session, "Once upon a", add_bos=True),
        "n_predict": 0,
        "logprobs": True,
        "n_probs": 128,
        "stream": False,
        "post_sampling_probs": use_samplers,
    }
    (place,) = post(session, "/completion", body)["completion_probabilities"]
    entries = place["top_probs" if use_samplers else "top_logprobs"]
    assert entries[0]["token"] == " time"
    if use_samplers:
        assert 0 < len(entries) <= NEUTRAL["top_k"]
        assert sum(entry["prob"] for entry in entries) == pytest.approx(1)
    else:
        assert len(entries) == 128
        logprobs = [entry["logprob"] for entry in entries]
        assert logprobs == sorted(logprobs, reverse=True)


def test_probabilities_of_the_prompt(session: httpx.Client) -> None:
    token_ids = encode(session, "Once upon a time", add_bos=True)
    body = {
        "prompt": token_ids,
        "n_predict": 0,
        "n_probs": 5,
        "prompt_logprobs": True,
        "stream": False,
        "cache_prompt": False,
    }
    entries = post(session, "/completion", body)["prompt_probabilities"]
    assert [entry["id"] for entry in entries] == token_ids[1:]
    assert all(len(entry["top_logprobs"]) == 5 for entry in entries)


def test_a_prompt_that_is_too_long(session: httpx.Client) -> None:
    body = {**NEUTRAL, "prompt": [5] * 600, "n_predict": 5, "stream": True}
    answer = session.post("/completion", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "exceed_context_size_error"


def test_a_grammar(session: httpx.Client) -> None:
    parts = generate(session, "Once", 20, grammar='root ::= "yes" | "no"')
    assert "".join(part["content"] for part in parts) in ("yes", "no")
