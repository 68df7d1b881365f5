"""Token ids and tokenizer of the study, made once from the texts and then read from its folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from powerinfer._replacing import replacing
from powerinfer.errors import PowerInferError
from recipes.stories.corpus import (
    Source,
    TokenArray,
    join_documents,
    read_documents,
    text_path,
)
from recipes.stories.vocabulary import END_OF_TEXT, encode_documents, load_or_build

__all__ = ["Corpus", "prepare_corpus"]

_TOKENIZER, _TRAINING, _HELD_OUT = "tokenizer", "training.npy", "held-out.npy"
_ORDER_SEED = 20


@dataclass(frozen=True)
class Corpus:
    """The text and tokenizer that all runs of a study read.

    Attributes:
        tokenizer: folder with a tokenizer as transformers reads it.
        training: i32 token ids, documents in random order, each after `<|endoftext|>`.
        held_out: i32 token ids of documents that are in no training text.
    """

    tokenizer: Path
    training: NDArray[np.int32]
    held_out: NDArray[np.int32]


def prepare_corpus(data: Path, folder: Path, sources: Sequence[Source], vocab_size: int) -> Corpus:
    """Make the corpus in a folder, or read what is there.

    Args:
        data: the folder whose `text/` holds the texts.
        folder: where to write.
        sources: the texts to train on; the validation part of the first is held out.
        vocab_size: entries of the byte-level BPE vocabulary, learned from the training texts.

    Raises:
        PowerInferError: a text is missing, or a file cannot be written.
    """
    paths = folder / _TOKENIZER, folder / _TRAINING, folder / _HELD_OUT
    if not all(path.exists() for path in paths):
        _make(data, folder, sources, vocab_size)
    training, held_out = (np.load(path, mmap_mode="r") for path in paths[1:])
    return Corpus(paths[0], training, held_out)


def _make(data: Path, folder: Path, sources: Sequence[Source], vocab_size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    documents = [
        document
        for source in sources
        for document in read_documents(text_path(data, source.name), source.max_bytes)
    ]
    order = np.random.default_rng(_ORDER_SEED).permutation(len(documents))
    documents = [documents[number] for number in order]
    tokenizer = load_or_build(folder / "vocabulary.json", documents, vocab_size)
    _save_tokenizer(tokenizer, folder / _TOKENIZER)
    held_out = read_documents(text_path(data, sources[0].name, "valid"))
    for name, texts in ((_HELD_OUT, held_out), (_TRAINING, documents)):
        _save_ids(folder / name, join_documents(encode_documents(tokenizer, texts)))


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    marks = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(folder)


def _save_ids(path: Path, token_ids: TokenArray) -> None:
    with replacing(path, error=PowerInferError) as file:
        np.save(file, token_ids.astype(np.int32))
