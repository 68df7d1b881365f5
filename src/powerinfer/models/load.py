"""Loading a model from an open file: read, check, prepare, attach predictors."""

import logging
from dataclasses import replace

import numpy as np

from powerinfer.errors import GGUFError, PromptError
from powerinfer.gguf import GGUFFile
from powerinfer.models.attention import AttentionOptions, attention_options
from powerinfer.models.config import ModelConfig
from powerinfer.models.model import Model
from powerinfer.models.model_file import ModelFile
from powerinfer.models.sparsity import EXACT, OFF, default_sparsity, uniform, with_predictors
from powerinfer.models.tensors.predictor_tensors import predictor_threshold
from powerinfer.models.tensors.preparer import Progress
from powerinfer.models.weights import ModelWeights, load_weights
from powerinfer.ops.backend import AnyBackend
from powerinfer.values import Activation

__all__ = ["DEFAULT_CONTEXT_LENGTH", "default_context", "load_model", "prepare_model"]

DEFAULT_CONTEXT_LENGTH = 4096
"""Default context length, if the model supports it."""

_logger = logging.getLogger(__name__)


def load_model(
    file: GGUFFile,
    ops: AnyBackend,
    *,
    activation: Activation | str | None = None,
    sparsity: str | None = None,
    context_length: int | None = None,
    progress: Progress | None = None,
) -> Model:
    """Read, check and prepare a model, and attach one kind of predictor.

    Args:
        file: an open model file; must stay open as long as the model is used.
        activation: overrides the file's, for example `fatrelu:0.01`.
        sparsity: `off`, `exact` or a predictor kind; None for the file's default, see
            `default_sparsity`.
        context_length: positions to prepare; None for min(the model's, 4096).
        progress: called with (bytes prepared, bytes in all).

    Raises:
        GGUFError: the file is incomplete or contradicts itself.
        UnsupportedError: its architecture, a tensor format or an option is not implemented.
        PromptError: `context_length` is not positive, or exceeds the learned positions.
    """
    opened = ModelFile.of(file, activation)
    config = opened.config
    model = prepare_model(
        opened,
        ops,
        skips_neurons=sparsity != OFF and config.activation.is_sparse,
        context_length=context_length,
        progress=progress,
    )
    has_predictors = model.weights.has_predictors
    chosen = sparsity or default_sparsity(config, file.magic, has_predictors=has_predictors)
    if chosen == OFF:
        return replace(model, sparsity=OFF)
    return with_predictors(model, uniform(chosen, len(config.counted_layers)), name=chosen)


def prepare_model(
    opened: ModelFile,
    ops: AnyBackend,
    *,
    skips_neurons: bool,
    context_length: int | None = None,
    progress: Progress | None = None,
) -> Model:
    """Check and prepare a model to which nothing is attached that decides which neurons run.

    Other arguments, and errors, are those of `load_model`.

    Args:
        skips_neurons: prepare FFNs so that neurons can be skipped.
    """
    length = _choose_context_length(context_length, opened.config)
    weights = load_weights(opened, ops, skips_neurons=skips_neurons, progress=progress)
    return Model(
        config=opened.config,
        architecture=opened.architecture,
        weights=weights,
        ops=ops,
        attention=_attention(opened, weights, length),
        context_length=length,
        sparsity=EXACT if skips_neurons else OFF,
        mlp_threshold=predictor_threshold(opened.file),
    )


def default_context(config: ModelConfig) -> int:
    """Positions to prepare for where nobody asks for a number."""
    return min(config.context_length, DEFAULT_CONTEXT_LENGTH)


def _choose_context_length(asked: int | None, config: ModelConfig) -> int:
    if asked is None:
        return default_context(config)
    if asked < 1:
        raise PromptError(f"the context must be at least 1 token, got {asked}")
    if config.max_positions is not None and asked > config.max_positions:
        raise PromptError(
            f"a context of {asked} tokens was requested; this model has learned positions for "
            f"only {config.max_positions}",
            remedy="use a smaller one ({context_length})",
        )
    if asked > config.context_length:
        _logger.warning(
            "a context of %d was requested; the model was made for %d and may degrade beyond it",
            asked,
            config.context_length,
        )
    return asked


def _attention(
    opened: ModelFile, weights: ModelWeights, context_length: int
) -> tuple[AttentionOptions, ...]:
    divisors = None if weights.rope_divisors is None else weights.rope_divisors.decode()
    if divisors is not None and not (np.isfinite(divisors) & (divisors > 0)).all():
        path = opened.file.path
        raise GGUFError(f"{path}: rope_freqs.weight must hold positive finite numbers")
    config = opened.config
    return attention_options(config.attention, config.scales, context_length, divisors)
