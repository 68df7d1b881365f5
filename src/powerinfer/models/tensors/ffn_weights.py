"""Preparation of feed-forward blocks: dense ones, and experts with their routers."""

import numpy as np

from powerinfer.errors import GGUFError
from powerinfer.gguf import Tensor
from powerinfer.models.config import ModelConfig
from powerinfer.models.experts import ExpertsConfig
from powerinfer.models.tensors.ffn_tensors import ROUTER
from powerinfer.models.tensors.preparer import Preparer
from powerinfer.ops.backend import Matrix, SomeFFN, SomeLinear, Vector
from powerinfer.ops.protocol import FFN, MatrixUse, Router

__all__ = ["prepare_experts", "prepare_ffn"]


def prepare_ffn(
    prepare: Preparer,
    tensors: dict[str, Tensor],
    config: ModelConfig,
    suffix: str = "",
    *,
    is_exact_sparse: bool,
) -> SomeFFN:
    """Prepare a dense block."""
    down, down_t = f"ffn_down{suffix}", f"ffn_down{suffix}_t"
    is_down_transposed = f"{down_t}.weight" in tensors
    use, down_use = _uses(is_exact_sparse=is_exact_sparse, is_down_transposed=is_down_transposed)
    has_gate = f"ffn_gate{suffix}.weight" in tensors
    return prepare.ops.ffn_weights(
        FFN(
            gate=prepare.linear(tensors, f"ffn_gate{suffix}", use) if has_gate else None,
            up=prepare.linear(tensors, f"ffn_up{suffix}", use),
            down=prepare.linear(tensors, down_t if is_down_transposed else down, down_use),
            activation=config.activation,
            is_down_transposed=is_down_transposed,
            is_exact_sparse=is_exact_sparse,
            native=None,
        )
    )


def prepare_experts(
    prepare: Preparer,
    tensors: dict[str, Tensor],
    config: ModelConfig,
    experts: ExpertsConfig,
    *,
    is_exact_sparse: bool,
) -> SomeFFN:
    """Prepare a block of experts; arguments as for `prepare_ffn`.

    Raises:
        GGUFError: the router holds non-finite numbers.
    """
    is_down_transposed = "ffn_down_exps_t.weight" in tensors
    use, down_use = _uses(is_exact_sparse=is_exact_sparse, is_down_transposed=is_down_transposed)

    def linear(name: str, use: MatrixUse) -> SomeLinear | None:
        weights, bias = _tensors_of(tensors, name, experts.num_experts)
        return prepare.expert_linear(weights, bias, use) if weights else None

    router = _router(prepare, tensors, experts)
    gate, up = linear("ffn_gate", use), linear("ffn_up", use)
    down = linear("ffn_down_t" if is_down_transposed else "ffn_down", down_use)
    if up is None or down is None:
        raise GGUFError("a block of experts has no up or no down; it was not found by find_ffn")
    return prepare.ops.ffn_weights(
        FFN(
            gate=gate,
            up=up,
            down=down,
            activation=config.activation,
            is_down_transposed=is_down_transposed,
            is_exact_sparse=is_exact_sparse,
            router=router,
            native=None,
        )
    )


def _tensors_of(
    tensors: dict[str, Tensor], name: str, num_experts: int
) -> tuple[list[Tensor], Tensor | None]:
    """Return the weights of all experts, merged or one by one, and their biases."""
    is_transposed, plain = name.endswith("_t"), name.removesuffix("_t")
    merged = f"{plain}_exps_t" if is_transposed else f"{plain}_exps"
    names = [f"{merged}.weight"]
    if names[0] not in tensors:
        names = [f"{plain}.{number}.weight" for number in range(num_experts)]
    found = [tensors[each] for each in names if each in tensors]
    return found, tensors.get(f"{merged}.bias")


def _router(
    prepare: Preparer, tensors: dict[str, Tensor], experts: ExpertsConfig
) -> Router[Matrix, Vector]:
    """Prepare a router. A damaged one would misroute tokens, so it must be finite."""
    for part in ("weight", "bias"):
        tensor = tensors.get(f"{ROUTER}.{part}")
        if tensor is not None and not np.isfinite(tensor.decode()).all():
            raise GGUFError(
                f"{tensor.file}: tensor {tensor.name} of a router holds NaN or infinity; expected "
                "finite numbers: the file is damaged"
            )
    return Router(
        prepare.linear(tensors, ROUTER),
        experts.num_experts,
        experts.num_used,
        experts.rule,
        experts.is_normalized,
    )


def _uses(*, is_exact_sparse: bool, is_down_transposed: bool) -> tuple[MatrixUse, MatrixUse]:
    # The gate too, although `exact` reads it whole: a predictor attached later skips its rows.
    # Neurons that are columns of down cannot be skipped there.
    use = MatrixUse.NEURONS if is_exact_sparse else MatrixUse.DENSE
    return use, use if is_down_transposed else MatrixUse.DENSE
