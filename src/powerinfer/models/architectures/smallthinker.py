"""SmallThinker (PowerInfer's own): ReGLU experts chosen before the attention of their layer runs.

The router sees the unnormalized residual stream before the layer. In files with a window (21B) one
of four layers attends to everything and does not rotate; in files without (4B) all layers do both.
We use the file's window; llama.cpp always uses 4096, the value of published files.
"""

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, run_layer
from powerinfer.models.attention import WindowPattern
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.experts import ExpertRules
from powerinfer.ops.operands import RouterRule
from powerinfer.values import Activation, ActivationKind

__all__ = ["ARCHITECTURE"]

_MOE = "model.layers.{layer}.block_sparse_moe"
_SOFTMAX, _SIGMOID = 1, 2


def _windows(config: CheckpointConfig) -> list[bool] | None:
    """Read `sliding_window_layout`; if it is set, only layers with a window may rotate."""
    count = config.integer("num_hidden_layers")
    flags = [bool(flag) for flag in config.items("sliding_window_layout", int, count)]
    rotating = [bool(flag) for flag in config.items("rope_layout", int, count)] or [True] * count
    if rotating != (flags if any(flags) else [True] * count):
        raise config.unsupported("rope_layout", "rotation in layers with a window, or in all")
    return flags if any(flags) else None


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    if config.flag("moe_enable_secondary_experts", default=False):
        raise config.unsupported("moe_enable_secondary_experts", "false")
    is_softmax = config.flag("moe_primary_router_apply_softmax", default=False)
    return {keys.EXPERT_GATING: _SOFTMAX if is_softmax else _SIGMOID}


ARCHITECTURE = Architecture(
    name="smallthinker",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES
    | {
        "blk.{layer}.ffn_gate_inp": f"{_MOE}.primary_router",
        "blk.{layer}.ffn_gate_exps": f"{_MOE}.experts.{{expert}}.gate",
        "blk.{layer}.ffn_up_exps": f"{_MOE}.experts.{{expert}}.up",
        "blk.{layer}.ffn_down_exps": f"{_MOE}.experts.{{expert}}.down",
    },
    checkpoint=CheckpointRules(
        ("smallthinker",),
        config_names={
            "num_local_experts": ("moe_num_primary_experts",),
            "num_experts_per_tok": ("moe_num_active_primary_experts",),
            "moe_intermediate_size": ("moe_ffn_hidden_size",),
            "sliding_window": ("sliding_window_size",),
        },
        hidden_act="relu",
        rope_base=1.5e6,
        windows=_windows,
        metadata=_metadata,
    ),
    activation=Activation(ActivationKind.RELU),
    is_rope_interleaved=False,
    is_routed_by_layer_input=True,
    windows=WindowPattern(period=4, is_global_first=True, has_global_rope=False),
    experts=ExpertRules(rule=RouterRule.SIGMOID, size_key=keys.EXPERT_SIZE),
)
