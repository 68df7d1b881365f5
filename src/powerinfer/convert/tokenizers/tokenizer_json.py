"""Checked content of a ``tokenizer.json`` with BPE.

Checkpoints with ``vocab.json`` and ``merges.txt`` instead (OPT, GPT-2) get the content that
transformers would generate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from powerinfer.convert.tokenizers.added_tokens import (
    FLAGS,
    AddedToken,
    added_tokens,
    listed_tokens,
)
from powerinfer.convert.tokenizers.files import (
    check_unicode,
    optional_object,
    read_object,
    read_text,
)
from powerinfer.errors import TokenizerError, UnsupportedError

__all__ = [
    "TokenizerJson",
    "entries_of",
    "load_tokenizer_json",
    "load_vocab_and_merges",
    "merge_lines",
]

# Split expression of Qwen's tokenizers, which `vocab.json` does not contain.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
_TO_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_GPT2_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast")
_QWEN2_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
_GPT2_MODELS = ("gpt2", "opt")
_QWEN2_MODELS = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smallthinker")


@dataclass(frozen=True)
class TokenizerJson:
    """A tokenizer in the form of the `tokenizers` library.

    Attributes:
        vocab: ids of texts, without added tokens; ids are unique.
        merges: pairs in order of rank.
        added: added tokens by id, from all files of the checkpoint.
    """

    path: Path
    content: Mapping[str, object]
    vocab: Mapping[str, int]
    merges: tuple[tuple[str, str], ...]
    added: Mapping[int, AddedToken]

    @property
    def model(self) -> Mapping[str, object]:
        """The object ``model``."""
        model = self.content["model"]
        return model if isinstance(model, dict) else {}

    def for_library(self) -> dict[str, object]:
        """The content with all added tokens, and without truncation or padding."""
        added = [
            {
                "id": token_id,
                "content": token.text,
                **{flag: getattr(token, flag) for flag in FLAGS},
            }
            for token_id, token in sorted(self.added.items())
        ]
        return {**self.content, "added_tokens": added, "truncation": None, "padding": None}


def load_tokenizer_json(path: Path) -> TokenizerJson:
    """Read ``tokenizer.json``."""
    return _checked(path, read_object(path))


def load_vocab_and_merges(folder: Path) -> TokenizerJson:
    """Read ``vocab.json`` and ``merges.txt``."""
    path = folder / "vocab.json"
    vocab = read_object(path)
    lines = read_text(folder / "merges.txt").split("\n")
    first = 1 if lines[0].startswith("#version") else 0
    merges = [line.rstrip("\r") for line in lines[first:] if line.strip()]
    normalizer, pre_tokenizer = _cutting(folder)
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    return _checked(
        path,
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": None,
            "decoder": {**_TO_BYTES, "use_regex": True},
            "model": model,
        },
    )


def _cutting(folder: Path) -> tuple[object, object]:
    """Normalizer and pre-tokenizer of the class named by ``tokenizer_config.json``."""
    path = folder / "tokenizer_config.json"
    name = optional_object(path).get("tokenizer_class")
    model_type = optional_object(folder / "config.json").get("model_type")
    if name in _GPT2_CLASSES or (name is None and model_type in _GPT2_MODELS):
        return None, {**_TO_BYTES, "use_regex": True}
    # Files of Qwen3.5 may name the class of Qwen2.
    is_qwen35 = name == "Qwen3_5Tokenizer" or str(model_type).startswith("qwen3_5")
    if is_qwen35 or name in _QWEN2_CLASSES or (name is None and model_type in _QWEN2_MODELS):
        pattern = {"Regex": _QWEN35 if is_qwen35 else _QWEN2}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated"}
        stages = [{**split, "invert": False}, {**_TO_BYTES, "use_regex": False}]
        return {"type": "NFC"}, {"type": "Sequence", "pretokenizers": stages}
    raise UnsupportedError(
        f"{folder / 'vocab.json'}: the pre-tokenizer is unknown (tokenizer_class "
        f"{name!r:.60}, model_type {model_type!r:.60}): save tokenizer.json as well"
    )


def _checked(path: Path, content: dict[str, object]) -> TokenizerJson:
    model = content.get("model")
    if not isinstance(model, dict):
        raise TokenizerError(f"{path}: model is {model!r:.60}; expected an object")
    _check_kind(model, path)
    vocab = _vocab(model.get("vocab"), path)
    listed = listed_tokens(content.get("added_tokens"), path)
    added = added_tokens(path.parent, listed, vocab)
    return TokenizerJson(path, content, vocab, _merges(model.get("merges"), path), added)


def _check_kind(model: Mapping[str, object], path: Path) -> None:
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        raise UnsupportedError(f"{path}: a tokenizer of kind {kind!r:.40} is not supported; BPE is")
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            raise UnsupportedError(
                f"{path}: model.{key} is {model[key]!r:.40}; GGUF has no key for it"
            )


def _vocab(value: object, path: Path) -> dict[str, int]:
    if not isinstance(value, dict) or not value:
        raise TokenizerError(f"{path}: model.vocab is {value!r:.60}; expected a mapping to ids")
    for text, token_id in value.items():
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise TokenizerError(f"{path}: token {text!r:.40} has the id {token_id!r:.40}")
    if len(set(value.values())) < len(value):
        raise TokenizerError(f"{path}: two tokens have the same id")
    return value


def _merges(value: object, path: Path) -> tuple[tuple[str, str], ...]:
    """Pairs, which transformers 4 wrote as texts separated by a space."""
    if not isinstance(value, list):
        raise TokenizerError(f"{path}: merges is {value!r:.60}; expected a list")
    pairs: list[tuple[str, str]] = []
    for rank, item in enumerate(value):
        parts = item.split(" ") if isinstance(item, str) else item
        if not isinstance(parts, list) or len(parts) != 2 or not all(map(_is_part, parts)):
            raise TokenizerError(f"{path}: merge {rank} is {item!r:.60}; expected two strings")
        pairs.append((parts[0], parts[1]))
    return tuple(pairs)


def _is_part(part: object) -> bool:
    return isinstance(part, str) and bool(part)


def merge_lines(source: TokenizerJson) -> list[str]:
    """Merges as GGUF writes them; the last of duplicates counts, as in the library."""
    pairs = source.merges
    if len(set(pairs)) < len(pairs):
        pairs = tuple(dict.fromkeys(reversed(pairs)))[::-1]
    for left, right in pairs:
        if " " in left or " " in right:
            raise TokenizerError(f"{source.path}: the merge {(left, right)!r:.80} has a space")
    merges = [f"{left} {right}" for left, right in pairs]
    check_unicode("".join(merges), source.path, "a merge")
    return merges


def entries_of(value: object, path: Path, list_key: str) -> list[Mapping[str, object]]:
    """Flatten the steps of a normalizer, pre-tokenizer or post-processor.

    Args:
        list_key: key of a sequence's list: ``normalizers``, ``pretokenizers``, ``processors``.
    """
    found: list[Mapping[str, object]] = []
    waiting = [] if value is None else [value]
    while waiting:
        step = waiting.pop()
        if not isinstance(step, dict) or len(found) + len(waiting) > 1000:
            raise TokenizerError(f"{path}: {list_key} has {step!r:.60}; expected an object")
        inner = step.get(list_key)
        if step.get("type") != "Sequence":
            found.append(step)
        elif isinstance(inner, list):
            waiting += reversed(inner)
        else:
            raise TokenizerError(f"{path}: {list_key} is {inner!r:.60}; expected a list")
    return found
