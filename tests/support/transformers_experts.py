"""Experts of the models of transformers_cases.py: as transformers has them and as files do.

transformers holds the rows of gate and up of an expert in one matrix, gate first, and those of a
shared expert as well. Files have tensors of their own for each.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from transformers_cases import Case

__all__ = ["expert_keys", "expert_shapes", "from_gpt_oss", "shared_shapes", "stored_experts"]

FloatArray = npt.NDArray[np.float32]


def expert_keys(case: Case) -> dict[str, int]:
    """Keys of a file about its experts; none without experts."""
    sizes = case.sizes
    if not case.num_experts:
        return {}
    return {
        "expert_count": case.num_experts,
        "expert_used_count": sizes["num_experts_per_tok"],
        "expert_feed_forward_length": case.expert_size,
        "expert_shared_feed_forward_length": _shared_size(case),
    }


def expert_shapes(case: Case) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Our names and shapes of what transformers has in a block, without the block's prefix."""
    count, size, hidden = case.num_experts, case.expert_size, case.sizes["hidden_size"]
    yield "ffn_gate_inp.weight", (count, hidden)
    if case.kind == "Lfm2Moe" and case.sizes.get("use_expert_bias", True):
        yield "exp_probs_b.bias", (count,)
    if case.kind == "GptOss":
        yield "ffn_gate_inp.bias", (count,)
        yield "ffn_gate_up_exps.weight", (count, hidden, 2 * size)
        yield "ffn_gate_up_exps.bias", (count, 2 * size)
        yield "ffn_down_exps.weight", (count, size, hidden)
        yield "ffn_down_exps.bias", (count, hidden)
        return
    if case.kind == "NemotronH":
        yield from _ungated_shapes(case)
        return
    yield "ffn_gate_up_exps.weight", (count, 2 * size, hidden)
    yield "ffn_down_exps.weight", (count, hidden, size)
    shared = _shared_size(case)
    if case.kind == "Qwen3_5Moe":
        yield "ffn_gate_inp_shexp.weight", (1, hidden)
        yield "ffn_gate_shexp.weight", (shared, hidden)
        yield "ffn_up_shexp.weight", (shared, hidden)
        yield "ffn_down_shexp.weight", (hidden, shared)
    elif shared:
        yield from shared_shapes(case)


def _ungated_shapes(case: Case) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same of Nemotron-H, but for the matrix of the router."""
    count, size, hidden = case.num_experts, case.expert_size, case.sizes["hidden_size"]
    yield "exp_probs_b.bias", (count,)
    width = case.sizes.get("moe_latent_size", hidden)
    if "moe_latent_size" in case.sizes:
        yield "ffn_latent_down.weight", (width, hidden)
        yield "ffn_latent_up.weight", (hidden, width)
    yield "ffn_up_exps.weight", (count, size, width)
    yield "ffn_down_exps.weight", (count, width, size)
    yield "ffn_up_shexp.weight", (_shared_size(case), hidden)
    yield "ffn_down_shexp.weight", (hidden, _shared_size(case))


def shared_shapes(case: Case) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same of a shared expert with gate and up in one matrix."""
    shared, hidden = _shared_size(case), case.sizes["hidden_size"]
    yield "ffn_gate_up_shexp.weight", (2 * shared, hidden)
    yield "ffn_down_shexp.weight", (hidden, shared)


def _shared_size(case: Case) -> int:
    sizes = case.sizes
    default = sizes.get("shared_intermediate_size", 0)
    default = sizes.get("moe_shared_expert_intermediate_size", default)
    return int(sizes.get("shared_expert_intermediate_size", default))


def from_gpt_oss(name: str, values: FloatArray) -> FloatArray:
    """As the other models have it: gpt-oss has columns as rows, and gate and up alternate."""
    if "exps" in name and name.endswith("weight"):
        values = values.swapaxes(1, 2)
    if "gate_up" in name:
        values = np.concatenate([values[:, ::2], values[:, 1::2]], axis=1)
    return np.ascontiguousarray(values)


def stored_experts(
    name: str, values: FloatArray, *, is_down_transposed: bool
) -> Iterator[tuple[str, FloatArray]]:
    """What a file holds of one of these tensors."""
    if "gate_up" in name:
        # Rows of matrices; biases have no others.
        halves = np.split(values, 2, axis=-1 if name.endswith("bias") else -2)
        for part, half in zip(("gate", "up"), halves, strict=True):
            yield name.replace("gate_up", part), np.ascontiguousarray(half)
    elif "ffn_down" in name and is_down_transposed:
        turned = name.replace(".weight", "_t.weight").replace(".bias", "_t.bias")
        is_bias = name.endswith("bias")
        yield turned, values if is_bias else np.ascontiguousarray(values.swapaxes(-1, -2))
    else:
        yield name, values
