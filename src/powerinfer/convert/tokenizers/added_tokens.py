"""Tokens added to a vocabulary, from all files that may list them.

transformers 4 writes ``added_tokens_decoder`` into ``tokenizer_config.json``, earlier versions
``added_tokens.json``, and ``tokenizer.json`` has its own list. ``special_tokens_map.json`` and the
names (``bos_token`` ...) in ``tokenizer_config.json`` mark special ones too.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from powerinfer.convert.tokenizers.files import optional_object
from powerinfer.errors import TokenizerError

__all__ = ["FLAGS", "AddedToken", "added_tokens", "listed_tokens", "named_tokens"]

NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


@dataclass(frozen=True)
class AddedToken:
    """A token matched in text before any other splitting; flags as in the `tokenizers` library."""

    text: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


def listed_tokens(value: object, path: Path) -> dict[int, AddedToken]:
    """Read the list ``added_tokens`` of ``tokenizer.json``, by id."""
    if value is None:
        return {}
    if not isinstance(value, list):
        raise TokenizerError(f"{path}: added_tokens is {value!r:.60}; expected a list")
    entries = [(item.get("id"), item) for item in value if isinstance(item, dict)]
    if len(entries) < len(value):
        raise TokenizerError(f"{path}: added_tokens has an entry that is no object")
    found: dict[int, AddedToken] = {}
    for token_id, token in _parsed(entries, path):
        if found.setdefault(token_id, token) != token:
            raise TokenizerError(f"{path}: added_tokens has the id {token_id} twice")
    return found


def added_tokens(
    folder: Path, listed: Mapping[int, AddedToken], base: Mapping[str, int]
) -> dict[int, AddedToken]:
    """Collect all added tokens of a checkpoint, by id; a `listed` id keeps its text."""
    found = dict(listed)
    ids = {token.text: token_id for token_id, token in found.items()}
    for token_id, token in (*_decoder(folder), *_old_file(folder)):
        if token_id not in found and token.text not in ids:
            found[token_id] = token
            ids[token.text] = token_id
    for text in (*named_tokens(folder).values(), *_further(folder)):
        token_id = ids.get(text, base.get(text, -1))
        if token_id >= 0:
            found[token_id] = replace(found.get(token_id, AddedToken(text)), special=True)
    return found


def named_tokens(folder: Path) -> dict[str, str]:
    """Texts of the named special tokens: ``bos``, ``eos``, ``unk`` ..."""
    found: dict[str, str] = {}
    for name in _CONFIGS:
        config = optional_object(folder / name)
        for kind in NAMES:
            text = _text(config.get(f"{kind}_token"))
            if text:
                found.setdefault(kind, text)
    return found


def _further(folder: Path) -> Iterator[str]:
    for name in _CONFIGS:
        config = optional_object(folder / name)
        for key in _LISTS:
            value = config.get(key)
            entries = value.values() if isinstance(value, dict) else value
            if isinstance(entries, Iterable) and not isinstance(entries, str):
                yield from filter(None, map(_text, entries))


def _decoder(folder: Path) -> Iterator[tuple[int, AddedToken]]:
    path = folder / "tokenizer_config.json"
    entries = optional_object(path).get("added_tokens_decoder")
    if entries is None:
        return
    if not isinstance(entries, dict) or not all(isinstance(v, dict) for v in entries.values()):
        raise TokenizerError(f"{path}: added_tokens_decoder is not a mapping of ids to tokens")
    yield from _parsed(
        ((int(key) if key.isdecimal() else key, item) for key, item in entries.items()), path
    )


def _old_file(folder: Path) -> Iterator[tuple[int, AddedToken]]:
    path = folder / "added_tokens.json"
    entries = ((token_id, {"content": text}) for text, token_id in optional_object(path).items())
    yield from _parsed(entries, path)


def _parsed(
    entries: Iterable[tuple[object, Mapping[str, object]]], path: Path
) -> Iterator[tuple[int, AddedToken]]:
    for token_id, item in entries:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise TokenizerError(f"{path}: an added token has the id {token_id!r:.40}")
        text = item.get("content")
        if not isinstance(text, str) or not text:
            raise TokenizerError(
                f"{path}: added token {token_id} is {text!r:.40}; expected a string"
            )
        flags = {flag: item.get(flag) is True for flag in FLAGS}
        yield token_id, AddedToken(text, **flags)


def _text(value: object) -> str | None:
    """Text of a token in a config: a string, or an object with flags."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
