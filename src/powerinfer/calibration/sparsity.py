"""The neurons that a loaded model computes: by the user's options, the file and its calibration."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.calibration.stored import brief_calibration, stored_calibration
from powerinfer.calibration.text import BUNDLED_TEXT
from powerinfer.calibration.window_pass import LayersDone
from powerinfer.errors import CalibrationError, UnsupportedError
from powerinfer.gguf import GGUFFile
from powerinfer.models import (
    InputStatistics,
    Model,
    ModelConfig,
    uniform,
    with_predictors,
)
from powerinfer.models.sparsity import (
    EXACT,
    OFF,
    check_is_cuttable,
    check_is_sparse,
    default_sparsity,
    layer_source,
    layers_to_count,
    with_thresholds,
)
from powerinfer.options.options import AUTO, EngineOptions
from powerinfer.predictors import LayerChoice, build_predictor, parse_kind
from powerinfer.predictors.calibration import Calibration, Dial, default_dial
from powerinfer.predictors.choosing import choose_for_model, closest_point
from powerinfer.predictors.kind import THRESHOLD
from powerinfer.predictors.missing import missing_kind
from powerinfer.tokenizer import Tokenizer

__all__ = [
    "CALIBRATED",
    "Sparsity",
    "attach_sparsity",
    "attach_uncalibrated",
    "may_skip_neurons",
]

CALIBRATED = "calibrated"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The sparsity that runs, and why."""

    model: Model
    summary: str
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    """A model without predictors yet, and the options of the user."""

    model: Model
    file: GGUFFile
    tokenizer: Tokenizer
    options: EngineOptions
    progress: LayersDone | None

    @property
    def dial(self) -> Dial | None:
        """The dial that the user set, if any."""
        options = self.options
        return None if not options.has_dial else Dial(options.max_ffn_error, options.recall)

    def stored(self) -> Calibration | None:
        """The model's stored calibration."""
        return stored_calibration(self.file, self.model.config)

    def brief(self, kinds: Sequence[str] | None = None) -> Calibration:
        """A brief calibration of these kinds, or of all that make sense."""
        return brief_calibration(
            self.model,
            self.file,
            self.tokenizer,
            dial=self.dial or default_dial(self.model.config.activation),
            kinds=kinds,
            progress=self.progress,
        )


def may_skip_neurons(config: ModelConfig, options: EngineOptions) -> bool:
    """Return whether weights must be prepared so that neurons can be skipped.

    Raises:
        UnsupportedError: neurons were to be skipped, but the model has no FFN or its activation is
            never zero; or thresholds were asked for and it is not silu or gelu.
    """
    activation = config.activation
    if not config.has_ffns:
        _check_nothing_is_skipped(options)
        return False
    if options.activation_threshold is not None:
        check_is_cuttable(activation, "activation_threshold")
        return False
    if options.sparsity is None and options.has_dial and not activation.is_sparse:
        raise UnsupportedError(
            "max_ffn_error and recall need an activation of the ReLU family; this model runs "
            f"{activation}, so no neuron can be skipped",
            remedy="leave {max_ffn_error} and {recall} out, or, if the activation is wrong, name "
            "the right one with {activation}",
        )
    if options.sparsity == OFF or (options.sparsity is None and not activation.is_sparse):
        return False
    if options.sparsity is not None:
        check_is_sparse(activation, options.sparsity)
    return True


def _check_nothing_is_skipped(options: EngineOptions) -> None:
    """Raise UnsupportedError if neurons of a model without an FFN were to be skipped."""
    asked = {
        "sparsity": options.sparsity not in (None, OFF),
        "activation_threshold": options.activation_threshold is not None,
        "max_ffn_error": options.max_ffn_error is not None,
        "recall": options.recall is not None,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise UnsupportedError(
                "the model has no FFN, so no neuron can be skipped",
                remedy="leave {" + name + "} out",
            )


def attach_sparsity(
    model: Model,
    file: GGUFFile,
    tokenizer: Tokenizer,
    options: EngineOptions,
    progress: LayersDone | None = None,
) -> Sparsity:
    """Decide what runs and attach it to a model prepared as `may_skip_neurons` says.

    `progress` is called after each layer if the model has to be calibrated now.

    Raises:
        CalibrationError: the model's calibration is damaged or belongs to another.
        UnsupportedError: a kind does not fit the model.
    """
    attached = _attached(_Request(model, file, tokenizer, options, progress))
    if model.weights.mlp_problem is not None:
        _log.warning("%s; the file's predictors are not used", model.weights.mlp_problem)
    return attached


def attach_uncalibrated(model: Model, kind: str) -> Sparsity:
    """Attach one predictor kind at its default threshold, whatever was calibrated.

    The model is loaded with the sparsity `exact`; `mlp` runs at the threshold in the file.
    """
    return _uncalibrated(model, _full_name(kind))


def _attached(asked: _Request) -> Sparsity:
    model, options = asked.model, asked.options
    if options.activation_threshold is not None:
        return _with_thresholds(asked, options.activation_threshold)
    if model.sparsity == OFF:
        return Sparsity(model, "off: every neuron is computed")
    if options.sparsity == EXACT:
        return _exact(model)
    if options.sparsity is None:
        return _by_default(asked)
    if options.sparsity == AUTO:
        return _calibrated(asked, asked.stored() or asked.brief())
    return _forced(asked, _full_name(options.sparsity))


def _by_default(asked: _Request) -> Sparsity:
    # If some loss is allowed, only measuring shows how much it saves.
    calibration = asked.stored() or (None if asked.dial is None else asked.brief())
    if calibration is not None:
        return _calibrated(asked, calibration)
    model = asked.model
    has_predictors = model.weights.has_predictors
    name = default_sparsity(model.config, asked.file.magic, has_predictors=has_predictors)
    return _exact(model) if name == EXACT else _uncalibrated(model, name)


def _with_thresholds(asked: _Request, threshold: float | str) -> Sparsity:
    """Run thresholds on the activation: one for all layers, or those of a calibration."""
    model, calibration = asked.model, None
    chosen_for = ""
    if threshold != AUTO:
        thresholds = everywhere = [float(threshold)] * model.config.num_layers
    else:
        calibration = asked.stored() or asked.brief()
        if asked.dial is not None:
            calibration = choose_for_model(calibration, asked.dial)
        thresholds = [
            choice.thresholds[0] if choice.kind == THRESHOLD else 0.0
            for choice in calibration.choices
        ]
        places = dict(zip(model.config.counted_layers, thresholds, strict=True))
        everywhere = [places.get(number, 0.0) for number in range(model.config.num_layers)]
        chosen_for = f", calibrated for {calibration.dial}{_source(calibration)}"
    if not any(thresholds):
        return Sparsity(model, f"off: every neuron is computed, thresholds are 0{chosen_for}")
    cut = with_thresholds(model, everywhere, name=f"{THRESHOLD}:{threshold}")
    low, high = min(thresholds), max(thresholds)
    shown = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    summary = (
        f"lossy: neurons with |{model.config.activation}| below {shown} are skipped{chosen_for}"
    )
    return Sparsity(cut, summary, calibration)


def _exact(model: Model) -> Sparsity:
    exact = with_predictors(model, _everywhere(model, EXACT), name=EXACT)
    inside = " inside the chosen experts" if model.config.experts is not None else ""
    return Sparsity(exact, f"exact: neurons that do not fire are skipped{inside}, without loss")


def _everywhere(model: Model, kind: str) -> tuple[LayerChoice, ...]:
    return uniform(kind, len(model.config.counted_layers))


def _full_name(kind: str) -> str:
    return "+".join(str(part) for part in parse_kind(kind))


def _uncalibrated(model: Model, kind: str) -> Sparsity:
    predicted = with_predictors(model, _everywhere(model, kind), name=kind)
    return Sparsity(predicted, f"{kind}: {_thresholds_by_default(kind)}")


def _thresholds_by_default(kind: str) -> str:
    first = parse_kind(kind)[0].kind
    if first.name == "mlp":
        return "the file's own predictors and threshold"
    return first.summary if first.scorer is None else "default thresholds, not calibrated ones"


def _calibrated(asked: _Request, calibration: Calibration) -> Sparsity:
    """Run the choice of a calibration, or its choice for the user's dial."""
    if asked.dial is not None and asked.dial != calibration.dial:
        calibration = choose_for_model(calibration, asked.dial)
    _check_kinds(asked, calibration)
    model = with_predictors(
        asked.model, calibration.choices, name=CALIBRATED, statistics=_statistics(calibration)
    )
    kinds = [model.layer_kinds[number] for number in model.config.counted_layers]
    summary = f"calibrated for {calibration.dial}: {_count(kinds)}"
    return Sparsity(model, summary + _source(calibration), calibration)


def _check_kinds(asked: _Request, calibration: Calibration) -> None:
    """Check that every chosen kind is there: packages can be removed."""
    for kind in {choice.kind: None for choice in calibration.choices}:
        problem = missing_kind(kind)
        if problem is not None:
            raise CalibrationError(
                f"{asked.file.path}: its calibration chose the predictor kind {kind!r}, which "
                f"cannot run: {problem}",
                remedy="install that package, run `powerinfer calibrate` again, or take "
                "{sparsity='exact'}",
            )


def _forced(asked: _Request, kind: str) -> Sparsity:
    """Run one kind in every layer, at calibrated thresholds if there are any."""
    if parse_kind(kind)[0].kind.scorer is None:
        if asked.dial is not None:
            raise UnsupportedError(
                f"sparsity {kind} has no threshold, so there is nothing to set",
                remedy="leave {max_ffn_error} and {recall} out",
            )
        return _uncalibrated(asked.model, kind)
    calibration = asked.stored()
    is_measured = calibration is not None and all(kind in ly.curves for ly in calibration.layers)
    if not is_measured and asked.dial is not None:
        # A kind that the file cannot serve fails at the first layer: before anything is measured.
        first = layers_to_count(asked.model.config)[0]
        source = layer_source(asked.model, first, None)
        build_predictor(asked.model.ops, source, LayerChoice(kind))
        calibration, is_measured = asked.brief((kind,)), True
    if calibration is None:
        return _uncalibrated(asked.model, kind)
    dial = asked.dial or calibration.dial
    choices = _choices_of(kind, calibration, dial)
    model = with_predictors(asked.model, choices, name=kind, statistics=_statistics(calibration))
    thresholds = f"calibrated for {dial}" if is_measured else _thresholds_by_default(kind)
    return Sparsity(model, f"{kind}: {thresholds}{_source(calibration)}", calibration)


def _choices_of(kind: str, calibration: Calibration, dial: Dial) -> list[LayerChoice]:
    """Thresholds of one kind per layer; the default ones if it was not measured."""
    points = [closest_point(layer.curves.get(kind, ()), dial) for layer in calibration.layers]
    return [LayerChoice(kind, point.thresholds if point else ()) for point in points]


def _statistics(calibration: Calibration) -> tuple[InputStatistics, ...]:
    return tuple(InputStatistics(layer.mean, layer.variance) for layer in calibration.layers)


def _count(kinds: Sequence[str]) -> str:
    """For example `5 layers exact, 27 lowbit:2`."""
    counts = Counter(kinds)
    names = sorted(counts, key=lambda kind: (kind != EXACT, kind))
    parts = [f"{counts[name]} {name}" for name in names]
    first = "layer " if counts[names[0]] == 1 else "layers "
    return ", ".join([parts[0].replace(" ", f" {first}", 1), *parts[1:]])


def _source(calibration: Calibration) -> str:
    if calibration.text_name == BUNDLED_TEXT:
        return f" (measured on {calibration.num_tokens} tokens of {BUNDLED_TEXT})"
    return ""
