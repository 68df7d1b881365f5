"""Write a trained story model as a GGUF file that this package runs.

Matrices are stored in F16, norms in F32, the down projection transposed (one row per neuron).
"""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from torch import Tensor

from powerinfer.gguf import MetadataValue, TensorSpec, encode_tensor, keys, write_gguf
from recipes.stories.story_model import StoryConfig, StoryModel
from recipes.stories.vocabulary import END_OF_TEXT

__all__ = ["write_story_model"]

_ARCHITECTURE = "llama"
_NORMAL, _CONTROL = 1, 3
_MOSTLY_F16 = 1

FloatArray = npt.NDArray[np.float32]


def write_story_model(path: Path, model: StoryModel, tokenizer: Tokenizer, name: str) -> None:
    """Write model and vocabulary to ``path``, atomically.

    Args:
        path: the file to make.
        model: trained weights.
        tokenizer: byte-level BPE from `recipes.stories.vocabulary`.
        name: stored as the model's name.
    """
    metadata = {keys.ARCHITECTURE: _ARCHITECTURE, keys.NAME: name, keys.FILE_TYPE: _MOSTLY_F16}
    metadata |= _sizes(model.config) | _vocabulary(tokenizer)
    metadata[keys.FFN_ACTIVATION] = "drelu"
    write_gguf(path, metadata, _tensors(model))


def _sizes(config: StoryConfig) -> dict[str, MetadataValue]:
    sizes = {
        keys.VOCAB_SIZE: config.vocab_size,
        keys.CONTEXT_LENGTH: config.context_length,
        keys.HIDDEN_SIZE: config.hidden_size,
        keys.NUM_LAYERS: config.num_layers,
        keys.INTERMEDIATE_SIZE: config.intermediate_size,
        keys.NUM_HEADS: config.num_heads,
        keys.NUM_KV_HEADS: config.num_kv_heads,
        keys.RMS_NORM_EPSILON: config.norm_epsilon,
        keys.ROPE_DIMENSION_COUNT: config.head_dim,
        keys.ROPE_FREQUENCY_BASE: config.rope_base,
    }
    return {keys.of_architecture(_ARCHITECTURE, key): value for key, value in sizes.items()}


def _vocabulary(tokenizer: Tokenizer) -> dict[str, MetadataValue]:
    model = json.loads(tokenizer.to_str())["model"]
    texts = sorted(model["vocab"], key=model["vocab"].__getitem__)
    end_id = model["vocab"][END_OF_TEXT]
    types = np.full(len(texts), _NORMAL, np.int32)
    types[end_id] = _CONTROL
    return {
        keys.TOKENIZER_MODEL: "gpt2",
        keys.TOKENIZER_PRE: "gpt-2",
        keys.TOKENS: texts,
        keys.TOKEN_TYPES: types,
        keys.MERGES: [
            merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]
        ],
        keys.BOS_TOKEN_ID: end_id,
        keys.EOS_TOKEN_ID: end_id,
        keys.ADD_BOS_TOKEN: True,
        keys.ADD_EOS_TOKEN: False,
    }


def _tensors(model: StoryModel) -> list[TensorSpec]:
    config = model.config
    specs = [
        encode_tensor("token_embd.weight", _floats(model.embedding.weight), "f16"),
        encode_tensor("output_norm.weight", _floats(model.output_norm.weight), "f32"),
    ]
    for layer, block in enumerate(model.layers):
        attention, ffn = block.attention, block.ffn
        matrices = {
            "attn_q": _interleaved(_floats(attention.q.weight), config.num_heads),
            "attn_k": _interleaved(_floats(attention.k.weight), config.num_kv_heads),
            "attn_v": _floats(attention.v.weight),
            "attn_output": _floats(attention.output.weight),
            "ffn_gate": _floats(ffn.gate.weight),
            "ffn_up": _floats(ffn.up.weight),
            "ffn_down_t": _floats(ffn.down.weight).T,
        }
        norms = {"attn_norm": block.attention_norm.weight, "ffn_norm": block.ffn_norm.weight}
        for name, norm in norms.items():
            specs.append(encode_tensor(f"blk.{layer}.{name}.weight", _floats(norm), "f32"))
        for name, matrix in matrices.items():
            rows = np.ascontiguousarray(matrix)
            specs.append(encode_tensor(f"blk.{layer}.{name}.weight", rows, "f16"))
    return specs


def _floats(tensor: Tensor) -> FloatArray:
    values: FloatArray = tensor.detach().float().numpy()
    return values


def _interleaved(matrix: FloatArray, num_heads: int) -> FloatArray:
    """Reorder each head's rows from (first halves, second halves) to neighbouring pairs."""
    pairs = matrix.reshape(num_heads, 2, -1, matrix.shape[1])
    return pairs.transpose(0, 2, 1, 3).reshape(matrix.shape)
