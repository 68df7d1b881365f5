"""Shapes of models with planted sparsity, and their GGUF metadata."""

from dataclasses import dataclass

import numpy as np

from synthetic import vocabulary

__all__ = ["SHAPES", "PlantedShape", "architecture_metadata"]

NORM_EPS = 1e-5
# OPT's table of positions has two rows more than positions: row = position + 2.
OPT_POSITION_OFFSET = 2


@dataclass(frozen=True)
class PlantedShape:
    """Sizes of one model.

    Attributes:
        architecture: `llama` (ReLU on the gate), `bamboo` (dReLU), `opt` or `falcon` (ungated).
        hidden_size: width of the residual stream.
        intermediate_size: neurons of one FFN.
        num_layers: blocks of the whole model.
        num_heads: query heads.
        num_kv_heads: key and value heads.
        vocab_size: rows of embedding and head.
        density: share of neurons that fire on a token, by default.
        has_two_norms: a norm of its own for attention (Falcon-40B).
        context_length: positions the file promises.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    density: float
    has_two_norms: bool = False
    context_length: int = 2048

    @property
    def is_gated(self) -> bool:
        """Whether the FFN has a gate."""
        return self.architecture in ("llama", "bamboo")

    @property
    def is_drelu(self) -> bool:
        """Whether both branches are cut at zero."""
        return self.architecture == "bamboo"

    @property
    def is_layer_norm(self) -> bool:
        """LayerNorm instead of RMSNorm."""
        return not self.is_gated

    @property
    def is_parallel(self) -> bool:
        """Attention and FFN read the same input (Falcon)."""
        return self.architecture == "falcon"

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads

    @property
    def kv_size(self) -> int:
        """Width of all key heads."""
        return self.num_kv_heads * self.head_dim


SHAPES = {
    "relullama-7b": PlantedShape("llama", 4096, 11008, 32, 32, 32, 32000, 0.10),
    "turbosparse-mistral-7b": PlantedShape("bamboo", 4096, 14336, 32, 32, 8, 32000, 0.10),
    "opt-6.7b": PlantedShape("opt", 4096, 16384, 32, 32, 32, 50272, 0.05),
    "falcon-7b": PlantedShape("falcon", 4544, 18176, 32, 71, 1, 65024, 0.05),
    "falcon-40b": PlantedShape("falcon", 8192, 32768, 60, 128, 8, 65024, 0.05, has_two_norms=True),
    "tiny": PlantedShape("llama", 256, 1024, 2, 4, 2, 512, 0.10),
    "tiny-bamboo": PlantedShape("bamboo", 256, 1024, 2, 4, 2, 512, 0.10),
    "tiny-opt": PlantedShape("opt", 256, 1024, 2, 4, 4, 512, 0.10),
    "tiny-falcon": PlantedShape("falcon", 256, 1024, 2, 4, 1, 512, 0.10),
    "tiny-falcon-2": PlantedShape("falcon", 256, 1024, 2, 4, 2, 512, 0.10, has_two_norms=True),
}


def architecture_metadata(
    shape: PlantedShape, name: str, *, architecture: str | None = None, neurons: int | None = None
) -> dict[str, object]:
    """Hyper-parameters and a made-up vocabulary.

    Args:
        shape: sizes.
        name: `general.name`.
        architecture: the file's, where it is not the shape's own (a twin for llama.cpp).
        neurons: the file's, where they are not the shape's own.
    """
    prefix = architecture or shape.architecture
    integers = {
        "context_length": shape.context_length,
        "embedding_length": shape.hidden_size,
        "block_count": shape.num_layers,
        "feed_forward_length": neurons or shape.intermediate_size,
        "attention.head_count": shape.num_heads,
        "attention.head_count_kv": shape.num_kv_heads,
    }
    if prefix != "opt":
        integers["rope.dimension_count"] = shape.head_dim
    metadata: dict[str, object] = {"general.architecture": prefix, "general.name": name}
    metadata |= {f"{prefix}.{key}": np.uint32(value) for key, value in integers.items()}
    is_layer_norm = prefix in ("opt", "falcon")
    epsilon = "layer_norm_epsilon" if is_layer_norm else "layer_norm_rms_epsilon"
    metadata[f"{prefix}.attention.{epsilon}"] = np.float32(NORM_EPS)
    return metadata | vocabulary(shape.vocab_size)
