"""Activation frequencies of a model's neurons, from the best source available."""

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.files import find_brief_calibration
from powerinfer.calibration.sparsity import CALIBRATED
from powerinfer.calibration.stored import brief_text, calibration_fits, stored_calibration
from powerinfer.errors import CalibrationError, PlacementError, PromptError
from powerinfer.gguf import GGUFFile, model_identity
from powerinfer.models import Model
from powerinfer.models.sparsity import EXACT, OFF
from powerinfer.offload.activation_profile import find_profile, measure_profile, save_profile
from powerinfer.placement.activation_folder import find_activation_folder, read_activation_folder
from powerinfer.placement.problem import ActivationStats
from powerinfer.predictors import parse_kind
from powerinfer.predictors.calibration import Calibration, LayerCalibration
from powerinfer.predictors.choosing import closest_point
from powerinfer.store.cached_models import remember_model
from powerinfer.tokenizer import Tokenizer
from powerinfer.values import FloatArray

__all__ = ["activation_statistics", "frequency_of_density"]

# Odds are multiplied by at most 2 to this power; beyond it nothing changes in f32.
_MOST_DOUBLINGS = 60.0
_BISECTIONS = 60

_log = logging.getLogger(__name__)


def activation_statistics(
    model: Model,
    file: GGUFFile,
    tokenizer: Tokenizer,
    progress: Callable[[int, int], None] | None = None,
    calibration: Calibration | None = None,
) -> ActivationStats:
    """Find out how often each neuron is computed.

    Sources in order: the model's calibration, PowerInfer's `activation` folder next to it, a
    profile stored by an earlier call, and a new brief profile on the bundled text, which is stored.
    A damaged or unsuitable source causes a warning and is skipped. If nothing is skipped, every
    neuron is always computed.

    Args:
        model: on the CPU, with its predictors attached.
        calibration: calibration the model runs with; None for the stored one.

    Raises:
        NumericsError: the model produced NaN or infinity during profiling.
    """
    is_dense = model.sparsity == OFF or not model.config.activation.is_sparse
    if is_dense and not model.config.num_experts:
        return _every_neuron(model, "every neuron runs")
    if is_dense:
        # A neuron runs whenever its expert is chosen.
        return _of_profile(model, file, tokenizer, progress)
    known = _of_calibrations(model, file, calibration) or _of_folder(model, file)
    return known or _of_profile(model, file, tokenizer, progress)


def _every_neuron(model: Model, source: str) -> ActivationStats:
    shape = (model.config.num_layers, model.config.num_neurons)
    return ActivationStats(np.ones(shape, np.float32), source, num_tokens=0)


def _of_calibrations(
    model: Model, file: GGUFFile, given: Calibration | None
) -> ActivationStats | None:
    if given is not None:
        return _of_calibration(model, given)
    try:
        stored = stored_calibration(file, model.config)
    except CalibrationError as error:
        _log.warning("%s (it is not used for the placement)", error)
        stored = None
    found = None if stored is None else _of_calibration(model, stored)
    if found is not None:
        return found
    if not _runs_brief_choices(model):
        return None
    brief = find_brief_calibration(file)
    if brief is None or not calibration_fits(brief, model.config):
        return None
    return _of_calibration(model, brief)


def _runs_brief_choices(model: Model) -> bool:
    """Check that a brief calibration describes the model: it runs its choices, or no predictor."""
    return model.sparsity == CALIBRATED or set(model.layer_kinds) == {EXACT}


def _of_calibration(model: Model, calibration: Calibration) -> ActivationStats | None:
    """Frequencies by a calibration; None if the model runs a predictor it did not measure."""
    layers = []
    for kind, layer in zip(model.layer_kinds, calibration.layers, strict=True):
        frequency = _layer_frequency(kind, layer, calibration)
        if frequency is None:
            return None
        layers.append(frequency)
    source = f"calibrated on {calibration.text_name}"
    return ActivationStats(np.stack(layers), source, calibration.num_tokens)


def _layer_frequency(
    kind: str, layer: LayerCalibration, calibration: Calibration
) -> FloatArray | None:
    num_tokens = calibration.num_tokens
    if kind == EXACT or parse_kind(kind)[0].kind.scorer is None:
        return (layer.num_active / num_tokens).astype(np.float32)
    if kind == layer.choice.kind:
        point = layer.chosen_point
    else:
        point = closest_point(layer.curves.get(kind, ()), calibration.dial)
    return (
        None if point is None else frequency_of_density(layer.num_active, num_tokens, point.density)
    )


def frequency_of_density(
    num_active: npt.NDArray[np.int64], num_tokens: int, density: float
) -> FloatArray:
    """Estimate how often each neuron is predicted from its firing counts and the density.

    A predictor tuned for recall selects more neurons than fire, mostly those that are often close
    to firing. This multiplies the odds of all neurons by one factor that makes the mean the
    density. Half a token is added to both counts, so that neurons that never fired in a short text
    keep a chance.

    Args:
        num_active: i64[num_neurons], tokens for which each neuron fires.

    Returns:
        f32[num_neurons]; its mean is the density.
    """
    share = (num_active + 0.5) / (num_tokens + 1)
    odds = share / (1 - share)

    def predicted(doublings: float) -> npt.NDArray[np.float64]:
        raised = odds * 2.0**doublings
        scaled: npt.NDArray[np.float64] = raised / (1 + raised)
        return scaled

    low, high = -_MOST_DOUBLINGS, _MOST_DOUBLINGS
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if predicted(middle).mean() < density:
            low = middle
        else:
            high = middle
    return predicted(high).astype(np.float32)


def _of_folder(model: Model, file: GGUFFile) -> ActivationStats | None:
    folder = find_activation_folder(file.path)
    if folder is None:
        return None
    try:
        return read_activation_folder(
            folder,
            num_layers=model.config.num_layers,
            num_neurons=model.config.num_neurons,
            identity=model_identity(file),
            activation=str(model.config.activation),
        )
    except PlacementError as error:
        _log.warning("%s (it is not used for the placement)", error)
        return None


def _of_profile(
    model: Model, file: GGUFFile, tokenizer: Tokenizer, progress: Callable[[int, int], None] | None
) -> ActivationStats:
    identity = model_identity(file)
    profile = find_profile(model, identity)
    if profile is None:
        try:
            text = brief_text(model, tokenizer)
        except PromptError as error:
            _log.warning(
                "activation frequencies are unknown, all neurons count the same: %s", error
            )
            return _every_neuron(model, "no statistics: every neuron is assumed to run")
        _log.info("counting which neurons run on %d tokens of %s", text.windows.size, text.name)
        profile = measure_profile(model, text, progress)
        save_profile(model, identity, profile)
        remember_model(file.path, identity)
    frequency = (profile.num_computed / profile.num_tokens).astype(np.float32)
    return ActivationStats(frequency, f"a brief profile on {profile.text_name}", profile.num_tokens)
