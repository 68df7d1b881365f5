"""GGUF model files of llama.cpp and PowerInfer: reading, writing, key names, identity.

Only the container: `powerinfer.models` and `powerinfer.tokenizer` interpret keys and tensors. Every
file is treated as hostile; a bad one raises a clear `GGUFError`.
"""

from powerinfer.gguf.file import GGUFFile, Tensor
from powerinfer.gguf.identity import model_identity
from powerinfer.gguf.reader import open_gguf
from powerinfer.gguf.rewrite import rewrite_metadata
from powerinfer.gguf.value_types import MetadataValue, ValueType
from powerinfer.gguf.writer import TensorSpec, encode_tensor, write_gguf

__all__ = [
    "GGUFFile",
    "MetadataValue",
    "Tensor",
    "TensorSpec",
    "ValueType",
    "encode_tensor",
    "model_identity",
    "open_gguf",
    "rewrite_metadata",
    "write_gguf",
]
