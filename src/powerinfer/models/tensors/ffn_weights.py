"""Preparation of feed-forward blocks: dense ones, and experts with their routers."""

import numpy as np

from powerinfer.errors import GGUFError
from powerinfer.gguf import Tensor
from powerinfer.models.config import ModelConfig
from powerinfer.models.experts import SELECTION_BIAS, ExpertsConfig
from powerinfer.models.tensors.ffn_tensors import EXPERT_SCALE, ROUTER
from powerinfer.models.tensors.preparer import Preparer
from powerinfer.ops.backend import Matrix, SomeFFN, SomeLinear, Vector
from powerinfer.ops.protocol import FFN, MatrixUse, Router, RouterRule

__all__ = ["prepare_ffn"]

# A shared expert with a gate is a mixture of one, weighted by the sigmoid of its only logit.
_GATED = ExpertsConfig(1, 1, RouterRule.SIGMOID, is_normalized=False)


def prepare_ffn(
    prepare: Preparer,
    tensors: dict[str, Tensor],
    config: ModelConfig,
    *,
    skips_neurons: bool,
    is_shared: bool = False,
) -> SomeFFN:
    """Prepare a dense block or one of experts, or the shared expert: dense unless it has a gate.

    Args:
        skips_neurons: prepare it so that neurons can be skipped.

    Raises:
        GGUFError: the router holds non-finite numbers.
    """
    # Layers without a router are dense.
    experts = None if is_shared or f"{ROUTER}.weight" not in tensors else config.experts
    suffix = "" if experts is None else "_exps"
    if is_shared and config.experts is not None:
        suffix = config.experts.shared_suffix
    is_down_transposed = f"ffn_down{suffix}_t.weight" in tensors
    # The gate too, although `exact` reads it whole: a predictor attached later skips its rows.
    # Neurons that are columns of down cannot be skipped there.
    use = MatrixUse.NEURONS if skips_neurons else MatrixUse.DENSE
    down_use = use if is_down_transposed else MatrixUse.DENSE

    def linear(name: str, use: MatrixUse, end: str = "") -> SomeLinear | None:
        own = f"{name}{suffix}{end}"
        if experts is None:
            return prepare.linear(tensors, own, use) if f"{own}.weight" in tensors else None
        names = [f"{own}.weight"]
        if names[0] not in tensors:
            names = [f"{name}.{number}.weight" for number in range(experts.num_experts)]
        weights = [tensors[each] for each in names if each in tensors]
        bias = tensors.get(f"{own}.bias")
        return prepare.expert_linear(weights, bias, use) if weights else None

    router = None
    if experts is not None:
        router = _router(prepare, tensors, ROUTER, experts)
    elif is_shared and config.experts is not None and config.experts.has_shared_gate:
        router = _router(prepare, tensors, f"{ROUTER}{suffix}", _GATED)
    gate, up = linear("ffn_gate", use), linear("ffn_up", use)
    down = linear("ffn_down", down_use, "_t" if is_down_transposed else "")
    if up is None or down is None:
        raise GGUFError("an FFN has no up or no down; it was not found by find_ffn")
    return prepare.ops.ffn_weights(
        FFN(
            gate=gate,
            up=up,
            down=down,
            activation=config.activation,
            is_down_transposed=is_down_transposed,
            is_exact_sparse=skips_neurons,
            router=router,
            native=None,
        )
    )


def _router(
    prepare: Preparer, tensors: dict[str, Tensor], name: str, experts: ExpertsConfig
) -> Router[Matrix, Vector]:
    """Prepare a router. A damaged one would misroute tokens, so it must be finite."""
    for stored in (f"{name}.weight", f"{name}.bias", SELECTION_BIAS):
        tensor = tensors.get(stored)
        if tensor is not None and not np.isfinite(tensor.decode()).all():
            raise GGUFError(
                f"{tensor.file}: tensor {tensor.name} of a router holds NaN or infinity; expected "
                "finite numbers: the file is damaged"
            )
    bias = tensors.get(SELECTION_BIAS) if experts.has_selection_bias else None
    scale = tensors.get(EXPERT_SCALE) if experts.has_scales else None
    return Router(
        prepare.linear(tensors, name),
        experts.num_experts,
        experts.num_used,
        experts.rule,
        experts.is_normalized,
        None if bias is None else prepare.vector(bias),
        experts.weights_scale,
        None if scale is None else prepare.vector(scale),
    )
