"""One small byte-level vocabulary, as GGUF metadata and as a tokenizer of transformers."""

from typing import Any

from powerinfer.tokenizer.pieces import BYTE_CHARACTERS
from tokenizer_metadata import Metadata, byte_level

__all__ = ["BOS_ID", "VOCAB_SIZE", "as_metadata", "as_transformers"]

_MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d"]
_TOKENS = [*BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in _MERGES)]
_SPECIAL = ["<|begin|>", "<|end|>"]
BOS_ID = len(_TOKENS)
VOCAB_SIZE = BOS_ID + len(_SPECIAL)


def as_metadata(*, add_bos: bool) -> Metadata:
    """Keys of a GGUF file."""
    keys = {
        "pre": "gpt-2",
        "bos_token_id": BOS_ID,
        "eos_token_id": BOS_ID + 1,
        "add_bos_token": add_bos,
    }
    return byte_level(_TOKENS, _MERGES, _SPECIAL, keys=keys)


def as_transformers(*, add_bos: bool) -> Any:
    """The same in transformers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    merges = [(left, right) for left, right in map(str.split, _MERGES)]
    vocabulary = {token: index for index, token in enumerate(_TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_SPECIAL)
    begin, end = _SPECIAL
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, BOS_ID)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begin, eos_token=end)
