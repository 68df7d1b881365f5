"""Conversion of a checkpoint's tokenizer to GGUF metadata."""

from pathlib import Path

from powerinfer.convert.tokenizers.added_tokens import added_tokens
from powerinfer.convert.tokenizers.byte_fallback import (
    byte_fallback_metadata,
    sentencepiece_metadata,
)
from powerinfer.convert.tokenizers.byte_level import byte_level_metadata
from powerinfer.convert.tokenizers.chat_template import read_chat_template
from powerinfer.convert.tokenizers.pre_tokenizer import cuts_bytes
from powerinfer.convert.tokenizers.raw_bpe import is_raw_bpe, raw_bpe_metadata
from powerinfer.convert.tokenizers.sentencepiece_model import SentencePieceModel
from powerinfer.convert.tokenizers.source import find_source, model_beside
from powerinfer.convert.tokenizers.special_ids import Around, around_text, special_id_metadata
from powerinfer.convert.tokenizers.tokenizer_json import TokenizerJson, entries_of
from powerinfer.errors import UnsupportedError
from powerinfer.gguf import keys

__all__ = ["read_tokenizer"]


def read_tokenizer(folder: Path, num_rows: int) -> dict[str, object]:
    """Read the ``tokenizer.*`` metadata of a GGUF file from a transformers checkpoint.

    Args:
        folder: checkpoint of transformers 4 or 5.
        num_rows: rows of the embedding; ids without a token become unused tokens ``[PADi]``.

    Raises:
        TokenizerError: a file is missing or damaged, or a token has no row in the embedding.
        UnsupportedError: GGUF or the engine does not support the kind of tokenizer or its
            splitting.
    """
    source = find_source(folder)
    if isinstance(source, SentencePieceModel):
        metadata = _of_model(source, folder, num_rows)
    else:
        metadata = _of_json(source, folder, num_rows)
    template = read_chat_template(folder)
    return metadata if template is None else {**metadata, keys.CHAT_TEMPLATE: template}


def _of_model(model: SentencePieceModel, folder: Path, num_rows: int) -> dict[str, object]:
    base = {piece.text: token_id for token_id, piece in enumerate(model.pieces)}
    metadata = sentencepiece_metadata(model, added_tokens(folder, {}, base), num_rows)
    return metadata | special_id_metadata(
        folder, metadata, defaults=model.ids, around=Around(), adds_bos=True
    )


def _of_json(source: TokenizerJson, folder: Path, num_rows: int) -> dict[str, object]:
    model = model_beside(folder)
    defaults = {} if model is None else dict(model.ids)
    stages = entries_of(source.content.get("pre_tokenizer"), source.path, "pretokenizers")
    if cuts_bytes(stages):
        metadata, defaults = byte_level_metadata(source, num_rows), {}
    elif source.model.get("byte_fallback") is True and is_raw_bpe(folder):
        metadata = raw_bpe_metadata(source, num_rows)
    elif source.model.get("byte_fallback") is True:
        metadata = byte_fallback_metadata(source, num_rows, model)
    else:
        raise UnsupportedError(
            f"{source.path}: BPE with neither byte-level splitting (ByteLevel) nor byte fallback "
            "(byte_fallback) is not supported"
        )
    unknown = source.model.get("unk_token")
    if isinstance(unknown, str) and unknown in source.vocab:
        defaults["unk"] = source.vocab[unknown]
    return metadata | special_id_metadata(
        folder, metadata, defaults=defaults, around=around_text(source), adds_bos=False
    )
