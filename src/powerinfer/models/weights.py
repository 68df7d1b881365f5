"""Weights of a model, prepared for a backend, and their loading.

Unknown tensors are ignored; those of predictors are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from powerinfer.errors import GGUFError
from powerinfer.gguf import Tensor
from powerinfer.models.architecture import Architecture, NormKind, QKNorm
from powerinfer.models.attention import LayerAttention
from powerinfer.models.config import EMBEDDING, POSITION_EMBEDDING, QK_NORMS, ModelConfig
from powerinfer.models.mixers import AttentionWeights, StateMixerWeights
from powerinfer.models.model_file import ModelFile
from powerinfer.models.per_layer import PerLayerEmbedding, PerLayerGate
from powerinfer.models.tensors.ffn_tensors import INPUT_SCALE, LATENT, ROUTER
from powerinfer.models.tensors.ffn_weights import prepare_ffn
from powerinfer.models.tensors.predictor_tensors import MLPTensors, find_predictors
from powerinfer.models.tensors.preparer import Preparer, Progress
from powerinfer.models.tensors.tensor_finder import OUTPUT_SCALE, TensorFinder
from powerinfer.models.tensors.tensor_lookup import alternate_rows, decoded
from powerinfer.ops.backend import Backend, Matrix, SomeFFN, SomeHeadNorms, SomeLinear, Vector
from powerinfer.ops.protocol import HeadNorms, MatrixUse
from powerinfer.predictors import LayerPredictor

__all__ = ["LayerWeights", "ModelWeights", "Norm", "load_weights"]

# These see the residual stream, the others the output of a block.
_STREAM_NORMS = ("attn_norm", "attn_norm_2", "ffn_norm", "output_norm")


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalization.

    Attributes:
        weight: f32[hidden_size], or as wide as its input.
        bias: like `weight`, or None.
    """

    kind: NormKind
    weight: Vector
    bias: Vector | None
    eps: float

    @property
    def num_vectors(self) -> int:
        """Number of vectors it reads."""
        return 1 if self.bias is None else 2


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer block.

    Attributes:
        own_mixer: attention, or a mixer with state; None for a layer that only has an FFN.
        norms: norms by name, see `Architecture.layer_norms`; with `attn_q_norm` and `attn_k_norm`
            if they normalize whole projections.
        ffn_input_norm: norm whose output the FFN gets.
        own_ffn: feed-forward block prepared by the backend; has a router if it consists of experts.
            None for a layer that only has a mixer.
        latent: projections into and out of the space in which the experts work, or None.
        per_layer: see `PerLayerGate`.
        output_scale: factor of the residual stream at the end of the layer.
    """

    own_mixer: AttentionWeights | StateMixerWeights | None
    norms: Mapping[str, Norm]
    ffn_input_norm: Norm
    own_ffn: SomeFFN | None
    predictor: LayerPredictor | None = None
    shared_ffn: SomeFFN | None = None
    latent: tuple[SomeLinear, SomeLinear] | None = None
    per_layer: PerLayerGate | None = None
    output_scale: float = 1.0

    @property
    def mixer(self) -> AttentionWeights | StateMixerWeights:
        """The mixer of a layer that must have one."""
        if self.own_mixer is None:
            raise TypeError("the layer has no mixer")
        return self.own_mixer

    @property
    def ffn(self) -> SomeFFN:
        """The FFN of a layer that must have one."""
        if self.own_ffn is None:
            raise TypeError("the layer has no FFN")
        return self.own_ffn


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights, prepared for one backend.

    Attributes:
        embedding: [vocab_size, hidden_size].
        output: [vocab_size, hidden_size]; the embedding's tensor if the file ties them.
        mlp: predictor matrices by number of their layer; empty if the file has none.
        mlp_problem: reason why the file's predictors cannot be used, or None.
        position_embedding: [rows, hidden_size] of learned positions, or None.
        per_layer: second embedding, of which each layer has a slice; or None.
    """

    embedding: Matrix
    output_norm: Norm | None
    output: SomeLinear
    layers: tuple[LayerWeights, ...]
    rope_divisors: Tensor | None = None
    mlp: Mapping[int, MLPTensors] = field(default_factory=dict)
    mlp_problem: str | None = None
    position_embedding: Matrix | None = None
    per_layer: PerLayerEmbedding | None = None

    @property
    def has_predictors(self) -> bool:
        """The file carries predictors, usable or not."""
        return bool(self.mlp) or self.mlp_problem is not None


def load_weights(
    opened: ModelFile, ops: Backend, *, skips_neurons: bool, progress: Progress | None = None
) -> ModelWeights:
    """Find, check and prepare every tensor of a model.

    Raises:
        GGUFError: tensors are missing or have wrong shapes; the message names them.
        UnsupportedError: a tensor's format has no kernel in `ops`.
    """
    file, config, architecture = opened.file, opened.config, opened.architecture
    found = TensorFinder(file, config, architecture)
    outer, blocks = found.all()
    found.lookup.raise_problems()
    total_bytes = sum(len(tensor.data) for tensor in file.tensors.values())
    prepare = Preparer(ops, progress=progress, total_bytes=total_bytes)
    parts = _PartPreparer(prepare, config, architecture, skips_neurons)
    mlp, mlp_problem = _predictors(opened)
    return ModelWeights(
        embedding=prepare.matrix(outer[EMBEDDING], MatrixUse.EMBEDDING),
        output_norm=parts.norms(outer, {"output_norm": architecture.norm}).get("output_norm"),
        output=prepare.linear(outer, "output"),
        layers=tuple(parts.layer(number, tensors) for number, tensors in enumerate(blocks)),
        rope_divisors=outer.get("rope_freqs.weight"),
        mlp=mlp,
        mlp_problem=mlp_problem,
        position_embedding=prepare.matrix(outer[POSITION_EMBEDDING], MatrixUse.EMBEDDING)
        if POSITION_EMBEDDING in outer
        else None,
        per_layer=PerLayerEmbedding.prepare(prepare, outer, config),
    )


def _predictors(opened: ModelFile) -> tuple[Mapping[int, MLPTensors], str | None]:
    """Predictors of the file, or what is wrong with them, which matters only if they run."""
    try:
        return find_predictors(opened.file, opened.config, opened.architecture), None
    except GGUFError as error:
        return {}, str(error)


@dataclass(frozen=True, slots=True)
class _PartPreparer:
    """Prepares norms and layers."""

    prepare: Preparer
    config: ModelConfig
    architecture: Architecture
    skips_neurons: bool

    def norms(self, tensors: dict[str, Tensor], kinds: Mapping[str, NormKind]) -> dict[str, Norm]:
        """Prepare the norms present, by name."""
        config, found = self.config, {}
        stream_eps = config.scales.stream_epsilon(config.norm_eps)
        for name, kind in kinds.items():
            weight, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
            if weight is not None:
                found[name] = Norm(
                    kind,
                    self.prepare.vector(weight),
                    None if bias is None else self.prepare.vector(bias),
                    stream_eps if name in _STREAM_NORMS else config.norm_eps,
                )
        return found

    def layer(self, number: int, tensors: dict[str, Tensor]) -> LayerWeights:
        """Prepare one block."""
        architecture, experts = self.architecture, self.config.experts
        ffn = partial(prepare_ffn, self.prepare, tensors, self.config.of_layer(number))
        kinds = dict.fromkeys(architecture.layer_norms, architecture.norm)
        kinds |= dict.fromkeys(architecture.optional_layer_norms, architecture.norm)
        if architecture.qk_norm is QKNorm.PROJECTION:
            kinds |= dict.fromkeys(QK_NORMS, NormKind.RMS)
        norms = self.norms(tensors, kinds)
        if INPUT_SCALE in tensors:
            norms[ROUTER] = self._router_norm(tensors[INPUT_SCALE])
        # With post-norm the FFN's input is the output of the attention's norm.
        has_own_norm = "ffn_norm" in norms and not self.config.is_post_norm
        has_ffn = number not in self.config.absent.ffns
        return LayerWeights(
            own_mixer=self._mixer(number, tensors),
            norms=norms,
            ffn_input_norm=norms["ffn_norm" if has_own_norm else "attn_norm"],
            own_ffn=ffn(skips_neurons=self.skips_neurons) if has_ffn else None,
            shared_ffn=ffn(skips_neurons=self.skips_neurons, is_shared=True)
            if has_ffn and experts is not None and experts.shared_size
            else None,
            latent=self._latent(tensors),
            per_layer=PerLayerGate.prepare(self.prepare, tensors, self.config),
            output_scale=float(tensors[OUTPUT_SCALE].decode()[0])
            if OUTPUT_SCALE in tensors
            else 1.0,
        )

    def _router_norm(self, scale: Tensor) -> Norm:
        """RMS norm of a router's input, which its weights divide by sqrt(hidden_size)."""
        values = scale.decode() * np.float32(self.config.hidden_size**-0.5)
        weight = self.prepare.vector(decoded(scale, values))
        return Norm(NormKind.RMS, weight, None, self.config.norm_eps)

    def _latent(self, tensors: dict[str, Tensor]) -> tuple[SomeLinear, SomeLinear] | None:
        into, out_of = LATENT
        if f"{into}.weight" not in tensors:
            return None
        return self.prepare.linear(tensors, into), self.prepare.linear(tensors, out_of)

    def _mixer(
        self, number: int, tensors: dict[str, Tensor]
    ) -> AttentionWeights | StateMixerWeights | None:
        if number in self.config.absent.mixers:
            return None
        state_mixer = self.config.state_mixers.get(number)
        if state_mixer is None:
            return self._attention(tensors, self.config.attention[number])
        return state_mixer.prepare(self.prepare, tensors)

    def _attention(self, tensors: dict[str, Tensor], layer: LayerAttention) -> AttentionWeights:
        sinks, gate = tensors.get("attn_sinks.weight"), None
        if self.architecture.has_attention_gate:
            tensors = tensors | _split_gate(tensors, self.config.head_dim)
            gate = self.prepare.linear(tensors, "attn_gate")
        names = AttentionWeights.input_names
        return AttentionWeights(
            qkv=tuple(
                self.prepare.linear(tensors, name) for name in names if f"{name}.weight" in tensors
            ),
            attn_output=self.prepare.linear(tensors, AttentionWeights.output_name),
            head_norms=self._head_norms(tensors, layer),
            sinks=None if sinks is None else self.prepare.vector(sinks),
            gate=gate,
        )

    def _head_norms(
        self, tensors: dict[str, Tensor], layer: LayerAttention
    ) -> SomeHeadNorms | None:
        if self.architecture.qk_norm is not QKNorm.HEAD:
            return None
        # Without keys of its own a layer has no norm of k.
        q, *k = (
            self.prepare.vector(tensors[f"{name}.weight"])
            for name in QK_NORMS
            if f"{name}.weight" in tensors
        )
        ones = np.ones(layer.head_dim, np.float32)
        v = self.prepare.ops.constant(ones) if self.architecture.normalizes_values else None
        return HeadNorms(q, k[0] if k else q, self.config.norm_eps, v)


def _split_gate(tensors: dict[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """Split `attn_q` into queries and gates, whose rows take turns head by head."""
    found = {}
    for part in ("weight", "bias"):
        whole = tensors.get(f"attn_q.{part}")
        if whole is not None:
            found[f"attn_q.{part}"], found[f"attn_gate.{part}"] = alternate_rows(whole, head_dim)
    return found
