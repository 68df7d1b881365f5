"""All tensors of the file to write, as views of a checkpoint's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from powerinfer.convert.arrange import Heads, Piece, Target, arrange, mxfp4, stacked
from powerinfer.convert.checkpoint import Checkpoint, CheckpointTensor
from powerinfer.convert.checkpoint.tensor import STORAGE
from powerinfer.convert.naming import Names, Place, is_ignored
from powerinfer.convert.selective_scans import with_scan_shapes
from powerinfer.convert.value_heads import ValueHeads, with_tiled_heads
from powerinfer.errors import CheckpointError, UnsupportedError
from powerinfer.gguf import keys
from powerinfer.models import Architecture
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.metadata import is_tied
from powerinfer.models.checkpoints.rope import rope_divisors
from powerinfer.models.tensors.ffn_tensors import SHARED

__all__ = ["EMBEDDING", "check_head", "model_tensors"]

EMBEDDING = "token_embd.weight"
_HEAD, _DIVISORS = "output.weight", "rope_freqs.weight"
_LAYER = re.compile(r"blk\.([0-9]+)\.")


def model_tensors(
    checkpoint: Checkpoint,
    config: CheckpointConfig,
    architecture: Architecture,
    metadata: Mapping[str, object],
    *,
    is_down_transposed: bool,
) -> list[Target]:
    """Find the place of every tensor of a checkpoint, ordered by layer."""
    places = _places(checkpoint, architecture, is_head_left_out=is_tied(config, architecture))
    num_experts = _size(metadata, architecture, keys.NUM_EXPERTS)
    found = []
    for place, tensors in places.items():
        if not num_experts:  # the FFN of dense models of some families with experts
            place = replace(place, name=place.name.removesuffix(SHARED))
        if place.part == "blocks":
            found.append(_of_blocks(place, tensors, places))
        elif place.part != "scales":
            found.append(stacked(place, tensors, num_experts))
    size = partial(_size, metadata, architecture)
    heads = Heads(size(keys.NUM_HEADS), size(keys.NUM_KV_HEADS), size(keys.HEAD_DIM))
    arranged = arrange(found, architecture, heads, is_down_transposed=is_down_transposed)
    if architecture.checkpoint.has_value_groups:
        num_heads = size(keys.SSM_TIME_STEP_RANK)
        value_dim = size(keys.SSM_INNER_SIZE) // num_heads
        own = ValueHeads(
            size(keys.SSM_GROUP_COUNT), num_heads, size(keys.SSM_STATE_SIZE), value_dim
        )
        arranged = (with_tiled_heads(target, own) for target in arranged)
    if architecture.checkpoint.has_selective_scans:
        num_groups = size(keys.SSM_GROUP_COUNT)
        arranged = (with_scan_shapes(target, num_groups) for target in arranged)
    targets = [*arranged, *_divisors(checkpoint, config, architecture, heads.head_dim)]
    return sorted(targets, key=_order)


def _places(
    checkpoint: Checkpoint, architecture: Architecture, *, is_head_left_out: bool
) -> dict[Place, dict[int | None, CheckpointTensor]]:
    """Group tensors by place, then by expert."""
    names = Names(architecture)
    found: dict[Place, dict[int | None, CheckpointTensor]] = {}
    for tensor in checkpoint.tensors.values():
        if is_ignored(tensor.name, architecture):
            continue
        place = names.place(tensor.name)
        if place is None:
            raise CheckpointError(f"{tensor} has no place in a {architecture.name} model")
        # Bytes are the codes of MXFP4 blocks; elsewhere they are those of another quantizer.
        is_code = tensor.format == "u8" and place.part not in ("blocks", "scales")
        if tensor.format not in STORAGE or is_code:
            raise UnsupportedError(
                f"{tensor}: is {tensor.format}; read are {', '.join(STORAGE)} (u8 in MXFP4 only); "
                "quantized checkpoints are not converted"
            )
        if is_head_left_out and place.name == _HEAD.partition(".")[0]:
            continue
        experts = found.setdefault(Place(place.name, place.part), {})
        if place.expert in experts:
            raise CheckpointError(f"{tensor}: is the same as {experts[place.expert].name}")
        experts[place.expert] = tensor
    return found


def _of_blocks(
    place: Place,
    tensors: dict[int | None, CheckpointTensor],
    places: dict[Place, dict[int | None, CheckpointTensor]],
) -> Target:
    scales = places.get(Place(place.name, "scales"), {}).get(None)
    blocks = next(iter(tensors.values()))
    if scales is None:
        name = blocks.name.removesuffix("_blocks")
        raise CheckpointError(f"{blocks}: tensor {name}_scales is missing")
    return mxfp4(f"{place.name}.weight", blocks, scales)


def _divisors(
    checkpoint: Checkpoint, config: CheckpointConfig, architecture: Architecture, head_dim: int
) -> list[Target]:
    """Frequency divisors, which checkpoints have only in the configuration."""
    divisors = rope_divisors(config, architecture, head_dim)
    if divisors is None:
        return []
    path = checkpoint.folder / "config.json"
    made = CheckpointTensor(_DIVISORS, "f32", divisors, divisors.shape, path)
    return [Target(_DIVISORS, divisors.shape, (Piece(made, divisors),))]


def check_head(checkpoint: Checkpoint, targets: Sequence[Target]) -> None:
    """Check that a model with an untied output head has one."""
    # A file without a head would use the embedding.
    if all(target.name != _HEAD for target in targets):
        raise CheckpointError(
            f"{checkpoint.index}: tensor lm_head.weight is missing, and tie_word_embeddings in "
            "config.json does not say that the embedding takes its place"
        )


def _size(metadata: Mapping[str, object], architecture: Architecture, key: str) -> int:
    value = metadata.get(keys.of_architecture(architecture.name, key), 0)
    return value if isinstance(value, int) else 0


def _order(target: Target) -> int:
    layer = _LAYER.match(target.name)
    return int(layer[1]) if layer else -1
