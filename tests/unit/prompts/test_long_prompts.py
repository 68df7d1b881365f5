"""Prompts that are too long: refused without being tokenized as a whole."""

import tracemalloc
from pathlib import Path

import pytest

from command_line import assert_error, invoke
from powerinfer import LLM, PromptError
from powerinfer.prompts.long_prompts import encode_prompt
from powerinfer.tokenizer import Tokenizer
from tiny_models import TINY_MODELS, write_model
from tokenizer_metadata import byte_level, small_byte_level, small_sentencepiece

VOCABULARIES = {
    "byte-level": small_byte_level(pre="gpt-2"),
    "sentencepiece": small_sentencepiece(),
    "phi-3": {**small_sentencepiece(), "general.name": "Phi-3"},
}


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("text", ["hello world ", "é", " ", "\n", "<tool>"])
def test_the_limit_is_exact(name: str, text: str) -> None:
    """What fits is never refused, what does not always is."""
    tokenizer = Tokenizer.from_metadata(VOCABULARIES[name])
    for count in (1, 10, 300):
        whole = tokenizer.encode(text * count, parse_special=True)
        assert encode_prompt(tokenizer, text * count, len(whole)) == whole
        if len(whole) > 1:
            with pytest.raises(PromptError, match=r"the prompt has .* tokens, the context holds"):
                encode_prompt(tokenizer, text * count, len(whole) - 1)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_huge_prompt_takes_no_memory(name: str) -> None:
    tokenizer = Tokenizer.from_metadata(VOCABULARIES[name])
    text = b"the quick brown fox " * 400_000
    tracemalloc.start()
    try:
        with pytest.raises(PromptError, match=r"(at least|more than) \d+ tokens"):
            encode_prompt(tokenizer, text, 64)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(text)
    finally:
        tracemalloc.stop()


def test_only_the_beginning_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_metadata({**byte_level(["a", "b", "Ġ"]), "general.name": "Phi-3"})
    assert tokenizer.least_tokens("a" * 1000) == 0
    encoded: list[int] = []
    encode = tokenizer._encoder.encode

    def counted(text: str, at_most: int | None = None) -> list[int]:
        found = encode(text, at_most)
        encoded.append(len(found))
        return found

    monkeypatch.setattr(tokenizer._encoder, "encode", counted)
    with pytest.raises(PromptError, match="more than 64 tokens"):
        encode_prompt(tokenizer, "ab ab ab " * 100_000, 16)
    assert sum(encoded) < 100_000


def test_python_and_the_command_line_refuse_alike(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes(b"word " * 1_000_000)
    with LLM(model) as llm, pytest.raises(PromptError, match=r"at least .* larger context"):
        llm.generate(prompt.read_bytes())
    assert_error(invoke("run", "-m", model, "-f", prompt), "at least", "-c")
    assert_error(invoke("run", "-m", model, stdin=prompt.read_bytes()), "at least", "-c")
