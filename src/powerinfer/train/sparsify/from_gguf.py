"""A checkpoint from a Llama-shaped GGUF file, whose weights become f32, quantized ones too."""

import json
from pathlib import Path

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, processors

from powerinfer._files import write_atomically
from powerinfer._replacing import make_folder_of
from powerinfer.convert.naming import Names
from powerinfer.errors import CheckpointError, UnsupportedError
from powerinfer.gguf import GGUFFile, Tensor, open_gguf
from powerinfer.models import ModelConfig, get_architecture, read_config
from powerinfer.models.rope import RopeScaling
from powerinfer.tokenizer.byte_level import library_pre_tokenizer
from powerinfer.tokenizer.vocabulary import BYTE_LEVEL, TokenType, Vocabulary, load_vocabulary
from powerinfer.train.sparsify.saving import write_tensors

__all__ = ["write_checkpoint"]

_LLAMA = "llama"
_ADVICE = "name the checkpoint that it was made from"


def write_checkpoint(path: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a checkpoint of transformers; its `config.json` comes last.

    Raises:
        GGUFError: the file cannot be read, or is no valid model.
        UnsupportedError: it is not Llama-shaped, has experts, scaled positions or windows, or a
            vocabulary that is not byte-level.
    """
    file = open_gguf(path)
    name = file.get_str("general.architecture")
    if name != _LLAMA:
        raise UnsupportedError(f"{path}: architecture {name}; supported: {_LLAMA}; {_ADVICE}")
    config = read_config(file, get_architecture(_LLAMA))
    vocabulary = load_vocabulary(file.metadata, source=str(path))
    _check(file, config, vocabulary)
    make_folder_of(folder / "config.json", error=CheckpointError)
    names = Names(get_architecture(_LLAMA))
    tensors = {
        names.in_checkpoint(tensor.name): torch.from_numpy(_values(tensor, config.head_dim))
        for tensor in file.tensors.values()
    }
    write_tensors(folder / "model.safetensors", tensors)
    tokenizer = _library_tokenizer(vocabulary).to_str().encode()
    write_atomically(folder / "tokenizer.json", tokenizer, error=CheckpointError)
    for name, values in (
        ("tokenizer_config.json", _tokenizer_config(vocabulary)),
        ("config.json", _config(config, vocabulary, is_tied="output.weight" not in file.tensors)),
    ):
        data = json.dumps(values, indent=2).encode() + b"\n"
        write_atomically(folder / name, data, error=CheckpointError)


def _check(file: GGUFFile, config: ModelConfig, vocabulary: Vocabulary) -> None:
    rope = config.rope
    is_scaled = rope is None or rope.scaling is not RopeScaling.NONE
    for is_found, what in (
        (config.num_experts, "experts"),
        (is_scaled or "rope_freqs.weight" in file.tensors, "scaled positions"),
        (config.sliding_window, "windows"),
        (vocabulary.model != BYTE_LEVEL, "a vocabulary that is not byte-level BPE"),
    ):
        if is_found:
            raise UnsupportedError(
                f"{file.path}: has {what}, which sparsify does not read from GGUF files; {_ADVICE}"
            )


def _values(tensor: Tensor, head_dim: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The numbers of a tensor in the order of rows that checkpoints have."""
    values = tensor.decode()
    if tensor.name.endswith((".attn_q.weight", ".attn_k.weight")):
        # Files interleave the two halves of each head.
        pairs = values.reshape(-1, head_dim // 2, 2, values.shape[-1])
        values = pairs.swapaxes(1, 2).reshape(values.shape)
    return np.ascontiguousarray(values)


def _config(config: ModelConfig, vocabulary: Vocabulary, *, is_tied: bool) -> dict[str, object]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": str(config.activation),
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": None if config.rope is None else config.rope.freq_base,
        "tie_word_embeddings": is_tied,
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": vocabulary.eos_id,
        "dtype": "float32",
    }


def _library_tokenizer(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer as an object of the tokenizers library."""
    pre = vocabulary.pre
    words = {
        text: token_id
        for text, token_id in vocabulary.ids_by_text.items()
        if vocabulary.types[token_id] is not TokenType.UNUSED
    }
    # The library refuses merges of tokens that are not there.
    merges = [(a, b) for a, b in vocabulary.merges if {a, b, a + b} <= words.keys()]
    library = tokenizers.Tokenizer(models.BPE(words, merges, ignore_merges=pre.ignore_merges))
    library.pre_tokenizer = library_pre_tokenizer(pre)
    library.decoder = decoders.ByteLevel()
    for text, kind in zip(vocabulary.texts, vocabulary.types, strict=True):
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            library.add_special_tokens([AddedToken(text, normalized=False)])
        elif kind is TokenType.USER_DEFINED:
            library.add_tokens([AddedToken(text, normalized=False)])
    if vocabulary.add_bos and vocabulary.bos_id is not None:
        text = vocabulary.texts[vocabulary.bos_id]
        library.post_processor = processors.TemplateProcessing(
            single=f"{text} $A", special_tokens=[(text, vocabulary.bos_id)]
        )
    return library


def _tokenizer_config(vocabulary: Vocabulary) -> dict[str, object]:
    named = {
        "bos_token": vocabulary.bos_id,
        "eos_token": vocabulary.eos_id,
        "unk_token": vocabulary.unknown_id,
    }
    texts = {key: vocabulary.texts[each] for key, each in named.items() if each is not None}
    template = (
        {} if vocabulary.chat_template is None else {"chat_template": vocabulary.chat_template}
    )
    return {"tokenizer_class": "PreTrainedTokenizerFast", **texts, **template}
