"""The sizes of predictors of a model's layers: what they hold, and what a token reads of them."""

from dataclasses import dataclass

from powerinfer.models import Architecture, ModelConfig
from powerinfer.models.tensors.predictor_tensors import input_width

__all__ = ["PredictorSizes"]


@dataclass(frozen=True, slots=True)
class PredictorSizes:
    """Sizes that all layers share; a dense FFN is one expert, always chosen.

    Attributes:
        width: numbers that a predictor sees of a token.
        expert_size: neurons of an expert.
        num_used: experts that a token is given to.
    """

    width: int
    expert_size: int
    num_experts: int = 1
    num_used: int = 1

    @classmethod
    def of(cls, config: ModelConfig, architecture: Architecture) -> "PredictorSizes":
        """Sizes for a model whose counted layers are alike."""
        experts = config.experts
        return cls(
            width=input_width(config, architecture),
            expert_size=config.intermediate_size,
            num_experts=1 if experts is None else experts.num_experts,
            num_used=1 if experts is None else experts.num_used,
        )

    @property
    def num_neurons(self) -> int:
        """Neurons of a layer, all experts included."""
        return self.num_experts * self.expert_size

    @property
    def num_candidates(self) -> int:
        """Neurons that may run for a token: those of its experts."""
        return self.num_used * self.expert_size

    @property
    def rank_parameters(self) -> int:
        """Parameters of a predictor per unit of its rank."""
        return self.width + self.num_neurons

    @property
    def rank_reads(self) -> int:
        """Parameters that a token reads of a predictor, per unit of its rank."""
        return self.width + self.num_candidates

    @property
    def fired_bytes(self) -> int:
        """Bytes of a token's firing bits: each of its experts begins a byte."""
        return self.num_used * -(-self.expert_size // 8)
