"""The calibration of a model: a stored one, or a brief measurement made now."""

import logging
from collections.abc import Callable, Sequence

from powerinfer.calibration.calibrate import calibrate, kinds_to_measure
from powerinfer.calibration.files import (
    find_brief_calibration,
    find_calibration,
    save_brief_calibration,
)
from powerinfer.calibration.text import (
    BUNDLED_TEXT,
    CalibrationText,
    bundled_text,
    cut_windows,
)
from powerinfer.errors import CalibrationError
from powerinfer.gguf import GGUFFile, model_identity
from powerinfer.models import Model, ModelConfig
from powerinfer.predictors.calibration import Calibration, Dial
from powerinfer.predictors.choosing import choose_for_model
from powerinfer.store.cached_models import remember_model
from powerinfer.tokenizer import Tokenizer

__all__ = ["brief_calibration", "brief_text", "calibration_fits", "stored_calibration"]

# Size of a calibration in passing: enough to tell kinds apart, not to be sure.
_BRIEF_TOKENS = 512
_BRIEF_WINDOW = 128

_log = logging.getLogger(__name__)


def stored_calibration(file: GGUFFile, config: ModelConfig) -> Calibration | None:
    """The stored calibration of a model that runs with this configuration, or None.

    Raises:
        CalibrationError: it is damaged, of another model, or of another activation.
    """
    calibration = find_calibration(file)
    if calibration is None:
        return None
    if calibration.activation != str(config.activation):
        raise CalibrationError(
            f"{file.path}: its calibration was made with the activation "
            f"{calibration.activation:.40}, this run uses {config.activation}",
            remedy="run `powerinfer calibrate` with the same {activation}, or take "
            "{sparsity='exact'}",
        )
    problem = _misfit(calibration, config)
    if problem is not None:
        raise CalibrationError(
            f"{file.path}: its calibration has {problem}: remove the calibration, or run "
            "`powerinfer calibrate` again"
        )
    return calibration


def brief_calibration(
    model: Model,
    file: GGUFFile,
    tokenizer: Tokenizer,
    *,
    dial: Dial,
    kinds: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Calibrate on a few hundred tokens, or take such a calibration of an earlier run.

    Without `kinds`, all that make sense are measured.
    """
    known = find_brief_calibration(file)
    if known is not None and _serves(known, model, kinds or kinds_to_measure(model)):
        return choose_for_model(known, dial)
    _log.warning(
        "this model has no calibration for these settings; measuring %d tokens of %s now "
        "(`powerinfer calibrate` measures more)",
        _BRIEF_TOKENS,
        BUNDLED_TEXT,
    )
    text = brief_text(model, tokenizer)
    identity = model_identity(file)
    found = calibrate(model, text, identity=identity, dial=dial, kinds=kinds, progress=progress)
    if kinds is None:
        save_brief_calibration(found)
        remember_model(file.path, identity)
    return found


def brief_text(model: Model, tokenizer: Tokenizer) -> CalibrationText:
    """A few hundred tokens of the text in the package."""
    return cut_windows(
        BUNDLED_TEXT,
        tokenizer.encode(bundled_text(), add_bos=False),
        num_tokens=_BRIEF_TOKENS,
        context_length=min(model.context_length, _BRIEF_WINDOW),
        bos_id=tokenizer.bos_id if tokenizer.add_bos else None,
    )


def _serves(known: Calibration, model: Model, kinds: Sequence[str]) -> bool:
    """Check that a brief calibration has all kinds; a damaged one is measured again."""
    has_kinds = all(kind in layer.curves for layer in known.layers for kind in kinds)
    return has_kinds and calibration_fits(known, model.config)


def calibration_fits(calibration: Calibration, config: ModelConfig) -> bool:
    """Compare a calibration with a model's sizes and activation."""
    has_activation = calibration.activation == str(config.activation)
    return has_activation and _misfit(calibration, config) is None


def _misfit(calibration: Calibration, config: ModelConfig) -> str | None:
    """The difference in sizes between a calibration and a model, or None."""
    num_layers = len(config.counted_layers)
    if len(calibration.layers) != num_layers:
        return f"{len(calibration.layers)} layers, the model {num_layers}"
    used = 1 if config.experts is None else config.experts.num_used
    if (calibration.num_experts, calibration.num_experts_used) != (config.num_experts or 1, used):
        return (
            f"{calibration.num_experts_used} of {calibration.num_experts} experts per token, the "
            f"model {used} of {config.num_experts or 1}"
        )
    for number, layer in enumerate(calibration.layers):
        for found, wanted, what in (
            (layer.num_active, config.num_neurons, f"neurons in layers[{number}].active"),
            (layer.mean, config.expert_hidden_size, f"inputs in layers[{number}].mean"),
        ):
            if len(found) != wanted:
                return f"{len(found)} {what}, the model {wanted}"
    return None
