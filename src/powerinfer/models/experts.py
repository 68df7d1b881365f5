"""Experts in model files: their number, and the rules of their router."""

from dataclasses import dataclass

from powerinfer.errors import UnsupportedError
from powerinfer.gguf import keys
from powerinfer.models.metadata import Metadata
from powerinfer.ops.operands import RouterRule

__all__ = ["SELECTION_BIAS", "SHARED", "ExpertRules", "ExpertsConfig", "read_experts"]

# Far above any published model (512 experts of 1536 neurons, shared ones of 16384).
_MAX_EXPERTS = 1 << 12
_MAX_SIZE = 1 << 20
_MAX_NEURONS = 1 << 24
_MAX_SCALE = 1e3

# Keys of other families, with the largest value that changes nothing. A file with more would run
# and write nonsense.
_FOREIGN_KEYS = {"expert_group_count": 1, keys.NUM_DENSE_LAYERS: 0}
SELECTION_BIAS = "exp_probs_b.bias"
SHARED = "_shexp"
"""Suffix of a shared expert's tensor names."""

# Values of `expert_gating_func`: the rule, and whether weights are always normalized. 0 leaves it
# to the family.
_GATING = {
    1: (RouterRule.SOFTMAX, False),
    2: (RouterRule.SIGMOID, False),
    3: (RouterRule.SOFTMAX, True),
}


@dataclass(frozen=True, slots=True)
class ExpertRules:
    """Default routing rules of a family.

    Attributes:
        is_normalized: weights are divided by their sum.
        size_key: key of the number of neurons per expert, without the architecture's prefix.
        has_dense_layers: the first layers may have one FFN of their own size each.
        has_selection_bias: a bias may change which experts are chosen, but not their weights.
        has_shared_gate: there is a shared expert, whose output is multiplied by the sigmoid of its
            own gate.
        has_dense_ffn: a dense FFN, with the tensors and the size of one in a layer without experts,
            takes the place of the shared expert; it has norms of its own.
        has_scales: the router normalizes its input itself, and each expert's weight has a factor.
    """

    rule: RouterRule = RouterRule.SOFTMAX
    is_normalized: bool = True
    size_key: str = keys.INTERMEDIATE_SIZE
    has_dense_layers: bool = False
    has_selection_bias: bool = False
    has_shared_gate: bool = False
    has_dense_ffn: bool = False
    has_scales: bool = False


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Experts of a model.

    Attributes:
        num_used: experts that a token uses; the most if layers differ.
        is_normalized: weights are divided by their sum.
        shared_size: neurons of the shared expert; 0 without one.
        num_dense_layers: number of layers at the beginning that have one FFN each.
        dense_size: neurons of each of these.
        has_selection_bias: see `ExpertRules`.
        has_shared_gate: see `ExpertRules`.
        weights_scale: factor of the weights.
        latent_size: width of the experts' input and output, between projections from and to the
            hidden size; 0 without these. Router and shared expert see the unprojected input.
        has_dense_ffn: see `ExpertRules`.
        has_scales: see `ExpertRules`.
    """

    num_experts: int
    num_used: int
    rule: RouterRule
    is_normalized: bool
    shared_size: int = 0
    num_dense_layers: int = 0
    dense_size: int = 0
    has_selection_bias: bool = False
    has_shared_gate: bool = False
    weights_scale: float = 1.0
    latent_size: int = 0
    has_dense_ffn: bool = False
    has_scales: bool = False

    @property
    def shared_suffix(self) -> str:
        """What the tensor names of the shared expert end with."""
        return "" if self.has_dense_ffn else SHARED


def read_experts(metadata: Metadata, rules: ExpertRules | None) -> ExpertsConfig | None:
    """Read the keys of experts; None if the file has none.

    Raises:
        GGUFError: a key is missing or out of range.
        UnsupportedError: experts of this family, or such weights, are not supported.
    """
    num_experts = metadata.integer(keys.NUM_EXPERTS, default=0, low=0, high=_MAX_EXPERTS)
    if not num_experts:
        return None
    if rules is None:
        raise UnsupportedError(
            f"{metadata.file.paths[0]}: {num_experts} experts per layer: {metadata.architecture} "
            "models are only supported with one FFN per layer"
        )
    _refuse_foreign(metadata, rules)
    num_layers = metadata.integer(keys.NUM_LAYERS)
    size = max(metadata.integers(rules.size_key, num_layers, low=0, high=_MAX_SIZE))
    if num_experts * size > _MAX_NEURONS:
        raise metadata.error(
            metadata.key(keys.NUM_EXPERTS),
            f"is {num_experts}, of {size} neurons each: more than {_MAX_NEURONS} in all",
        )
    rule, is_normalized = _rule(metadata, rules)
    num_dense = metadata.integer(keys.NUM_DENSE_LAYERS, default=0, low=0, high=num_layers)
    return ExpertsConfig(
        num_experts,
        _num_used(metadata, num_layers, num_experts),
        rule,
        is_normalized,
        _shared_size(metadata, rules),
        num_dense,
        metadata.integer(keys.INTERMEDIATE_SIZE, high=_MAX_SIZE) if num_dense else 0,
        rules.has_selection_bias,
        rules.has_shared_gate,
        # Some converters write 0 for no factor.
        metadata.number(keys.EXPERT_WEIGHTS_SCALE, default=1.0, high=_MAX_SCALE) or 1.0,
        metadata.integer(keys.EXPERT_LATENT_SIZE, default=0, low=0, high=_MAX_SIZE),
        rules.has_dense_ffn,
        rules.has_scales,
    )


def _num_used(metadata: Metadata, num_layers: int, num_experts: int) -> int:
    """Read the number of experts that a token uses, the most if layers differ."""
    if not metadata.is_array(keys.NUM_USED_EXPERTS):
        return metadata.integer(keys.NUM_USED_EXPERTS, high=num_experts)
    counts = metadata.integers(keys.NUM_USED_EXPERTS, num_layers, low=0, high=num_experts)
    if not any(counts):
        raise metadata.error(metadata.key(keys.NUM_USED_EXPERTS), "is 0 in all layers")
    return max(counts)


def _shared_size(metadata: Metadata, rules: ExpertRules) -> int:
    if rules.has_dense_ffn:
        return metadata.integer(keys.INTERMEDIATE_SIZE, high=_MAX_SIZE)
    if rules.has_shared_gate:
        return metadata.integer(keys.SHARED_EXPERT_SIZE, high=_MAX_SIZE)
    size = metadata.integer(keys.SHARED_EXPERT_SIZE, default=0, low=0, high=_MAX_SIZE)
    found = [name for name in metadata.file.tensors if SHARED in name]
    if found and not size:
        raise metadata.error(
            metadata.key(keys.SHARED_EXPERT_SIZE),
            f"is 0 or missing, but the file has shared experts, such as {found[0]!r}",
        )
    return size


def _refuse_foreign(metadata: Metadata, rules: ExpertRules) -> None:
    """Raise UnsupportedError for keys and tensors that would change which experts run."""
    path = metadata.file.paths[0]
    for name, most in _FOREIGN_KEYS.items():
        if rules.has_dense_layers and name == keys.NUM_DENSE_LAYERS:
            continue
        value = metadata.integer(name, default=most, low=0)
        if value > most:
            raise UnsupportedError(
                f"{path}: key {metadata.key(name)} is {value}; {metadata.architecture} models are "
                f"supported with at most {most}"
            )
    for name in metadata.file.tensors:
        if name.endswith(SELECTION_BIAS) and not rules.has_selection_bias:
            raise UnsupportedError(
                f"{path}: tensor {name!r}: routers with a bias for selection only are not supported"
            )


def _rule(metadata: Metadata, rules: ExpertRules) -> tuple[RouterRule, bool]:
    """Return the rule, and whether weights are normalized."""
    gating = metadata.integer(keys.EXPERT_GATING, default=0, low=0)
    if gating and gating not in _GATING:
        raise UnsupportedError(
            f"{metadata.file.paths[0]}: key {metadata.key(keys.EXPERT_GATING)} is {gating}; "
            f"supported are {', '.join(map(str, _GATING))}"
        )
    rule, is_softmax_of_chosen = _GATING.get(gating, (rules.rule, False))
    default = rules.is_normalized or is_softmax_of_chosen
    key = metadata.key(keys.EXPERT_WEIGHTS_NORMALIZED)
    return rule, metadata.file.get_bool(key, default=default) or is_softmax_of_chosen
