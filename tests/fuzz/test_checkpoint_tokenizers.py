"""Any damage to the tokenizer files of a checkpoint is a clear error, or changes nothing bad."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.convert.tokenizers import check_tokenizer, read_tokenizer
from powerinfer.errors import PowerInferError
from powerinfer.tokenizer import Tokenizer
from tokenizer_checkpoints import (
    FALCON,
    added,
    bos_template,
    byte_fallback_json,
    byte_level_json,
    sentencepiece_file,
    write_files,
)

# Falcon's pre-tokenizer is known by its structure, so that an example takes no second.
_BYTES = byte_level_json(FALCON) | {"post_processor": bos_template("<|end|>", 0)}
_BYTES["added_tokens"].append(added(340, "<tool>", special=False))
CONTENTS = [_BYTES, byte_fallback_json(), byte_fallback_json(prefix="first")]
CONFIG = {
    "added_tokens_decoder": {"340": {"content": "<v4>", "special": True}},
    "additional_special_tokens": ["<v4>"],
    "bos_token": {"content": "<s>"},
    "eos_token": "<|end|>",
    "chat_template": [{"name": "default", "template": "x"}],
    "add_bos_token": True,
    "eos_token_id": [1, 2],
}
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 500),
    st.sampled_from([10**30, 0.5, "", "BPE", "Unigram", "\ud800", " ", "▁", [], {}, [[]], [1, 2]]),
    st.text(max_size=3),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint to overwrite in every example."""
    return tmp_path_factory.mktemp("fuzz")


def _use(folder: Path, rows: int = 400) -> None:
    try:
        metadata = read_tokenizer(folder, rows)
        Tokenizer.from_metadata(metadata).encode("Hello <s> 世界")
        check_tokenizer(folder, metadata)
    except PowerInferError as error:
        message = str(error)
        assert message.startswith(str(folder)), message
        assert "\n" not in message
        assert len(message) < 1000 + len(str(folder))


def _replace(data: st.DataObject, value: Any, odd: Any, depth: int = 0) -> Any:
    """A copy of JSON with something in it replaced, left out or put in."""
    if depth and (not isinstance(value, dict | list) or not value or data.draw(st.booleans())):
        return odd
    keys = list(value) if isinstance(value, dict) else list(range(min(len(value), 50)))
    key = data.draw(st.sampled_from(keys))
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    action = data.draw(st.sampled_from(["replace", "replace", "replace", "leave out", "put in"]))
    if action == "leave out":
        del copy[key]
    elif action == "put in":
        copy = {**copy, str(odd): odd} if isinstance(copy, dict) else [*copy, odd]
    else:
        copy[key] = _replace(data, value[key], odd, depth + 1)
    return copy


@given(data=st.data(), content=st.sampled_from(CONTENTS), odd=ODD)
def test_changed_tokenizer_json(folder: Path, data: st.DataObject, content: Any, odd: Any) -> None:
    write_files(folder, {"tokenizer.json": _replace(data, content, odd)})
    write_files(folder, {"tokenizer_config.json": {}})
    _use(folder)


@given(data=st.data(), odd=ODD, name=st.sampled_from(["tokenizer_config", "generation_config"]))
def test_changed_configurations(folder: Path, data: st.DataObject, odd: Any, name: str) -> None:
    write_files(folder, {"tokenizer.json": _BYTES, "generation_config.json": CONFIG})
    write_files(folder, {f"{name}.json": _replace(data, CONFIG, odd)})
    _use(folder)


@given(at=st.integers(0, 20_000), new=st.binary(max_size=3), cut=st.integers(0, 3))
def test_changed_bytes_of_json(folder: Path, at: int, new: bytes, cut: int) -> None:
    text = json.dumps(_BYTES).encode()
    at %= len(text)
    write_files(folder, {"tokenizer.json": text[:at] + new + text[at + cut :]})
    write_files(folder, {"tokenizer_config.json": {}})
    _use(folder)


@given(at=st.integers(0, 20_000), new=st.binary(max_size=3), cut=st.integers(0, 3))
def test_changed_bytes_of_a_sentencepiece_model(
    tmp_path_factory: pytest.TempPathFactory, at: int, new: bytes, cut: int
) -> None:
    model = sentencepiece_file()
    at %= len(model)
    folder = tmp_path_factory.mktemp("model")
    write_files(folder, {"tokenizer.model": model[:at] + new + model[at + cut :]})
    _use(folder)


@given(rows=st.integers(1, 500))
def test_any_number_of_rows(folder: Path, rows: int) -> None:
    write_files(folder, {"tokenizer.json": _BYTES, "tokenizer_config.json": {}})
    _use(folder, rows)
