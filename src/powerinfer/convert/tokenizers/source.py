"""Selection of a checkpoint's tokenizer files."""

from dataclasses import replace
from pathlib import Path

from powerinfer.convert.tokenizers.files import optional_object
from powerinfer.convert.tokenizers.sentencepiece_model import (
    SentencePieceModel,
    is_sentencepiece,
    load_sentencepiece,
)
from powerinfer.convert.tokenizers.tokenizer_json import (
    TokenizerJson,
    load_tokenizer_json,
    load_vocab_and_merges,
)
from powerinfer.errors import TokenizerError, UnsupportedError

__all__ = ["find_source", "model_beside"]


def find_source(folder: Path) -> TokenizerJson | SentencePieceModel:
    """Read a checkpoint's tokenizer from the first file that exists.

    Order: ``tokenizer.json``, ``tokenizer.model``, ``vocab.json`` with ``merges.txt``.
    """
    if (folder / "tokenizer.json").exists():
        return load_tokenizer_json(folder / "tokenizer.json")
    model = folder / "tokenizer.model"
    if is_sentencepiece(model):
        # In transformers 4 the configuration overrides the model.
        prefix = optional_object(folder / "tokenizer_config.json").get("add_prefix_space")
        found = load_sentencepiece(model)
        return replace(found, add_space_prefix=prefix) if isinstance(prefix, bool) else found
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return load_vocab_and_merges(folder)
    wanted = "tokenizer.json, a SentencePiece tokenizer.model, or vocab.json and merges.txt"
    for name in ("tokenizer.model", "tekken.json"):
        if (folder / name).exists():
            raise UnsupportedError(
                f"{folder / name}: a tokenizer of this kind is not supported; wanted {wanted}"
            )
    raise TokenizerError(f"{folder}: no tokenizer: wanted {wanted}")


def model_beside(folder: Path) -> SentencePieceModel | None:
    """Read ``tokenizer.model`` next to a ``tokenizer.json``; None if it is missing or not BPE."""
    path = folder / "tokenizer.model"
    if not is_sentencepiece(path):
        return None
    try:
        return load_sentencepiece(path)
    except UnsupportedError:
        return None
