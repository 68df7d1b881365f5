"""The story model's own byte-level BPE vocabulary, built with the ``tokenizers`` library."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
"""The only special token, id 0: it begins every document and ends the one before."""


def build_vocabulary(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn ``vocab_size`` tokens (special token, 256 bytes, merges) with GPT-2's pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def load_or_build(path: Path, documents: Iterable[str], vocab_size: int) -> Tokenizer:
    """Read the vocabulary at ``path``, or learn it from the documents and write it there."""
    if path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = build_vocabulary(documents, vocab_size)
    temporary = path.with_suffix(".tmp")
    tokenizer.save(str(temporary))
    temporary.replace(path)
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> list[list[int]]:
    """Token ids of each document, without BOS."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(documents)]
