"""Settings of `--sparsity` for comparisons on the same weights."""

from dataclasses import dataclass, replace

from powerinfer.calibration.sparsity import attach_sparsity, attach_uncalibrated
from powerinfer.errors import PromptError
from powerinfer.loading.loader import LoadedModel
from powerinfer.models.sparsity import check_is_cuttable, check_is_sparse
from powerinfer.options.option_kinds import read_activation_threshold, read_sparsity
from powerinfer.options.options import AUTO, EngineOptions
from powerinfer.predictors.kind import THRESHOLD
from powerinfer.values import Activation

__all__ = ["Setting", "read_setting"]

_DEFAULT = "default"
_WITHOUT_DIAL = ("off", "exact", "oracle")


@dataclass(frozen=True, slots=True)
class Setting:
    """Values of `--sparsity` or `--activation-threshold`, and of `--max-ffn-error`.

    Attributes:
        sparsity: None for the default, or with a threshold.
        max_ffn_error: dial; None for the calibrated value.
        is_calibrated: False for a predictor kind at its default threshold, without a dial, even if
            there is a calibration.
    """

    sparsity: str | None
    max_ffn_error: float | None = None
    is_calibrated: bool = True
    activation_threshold: float | str | None = None

    def __str__(self) -> str:
        threshold = self.activation_threshold
        name = self.sparsity or (_DEFAULT if threshold is None else f"{THRESHOLD}:{threshold}")
        if not self.is_calibrated:
            return f"{name} @ {_DEFAULT}"
        return name if self.max_ffn_error is None else f"{name} @ {self.max_ffn_error:g}"

    def options(self, options: EngineOptions) -> EngineOptions:
        """Return the options of an engine that runs this setting."""
        sparsity = None if self.sparsity is None else read_sparsity(self.sparsity)
        threshold = self.activation_threshold
        if sparsity is None and threshold is None:
            threshold = options.activation_threshold
        return replace(
            options,
            sparsity=sparsity,
            activation_threshold=threshold,
            max_ffn_error=self.max_ffn_error,
        )

    @property
    def has_dial(self) -> bool:
        """A limit chooses what runs."""
        if self.sparsity is None:
            return self.activation_threshold == AUTO
        return self.sparsity not in _WITHOUT_DIAL

    def check(self, activation: Activation) -> None:
        """Raise UnsupportedError if a model with this activation cannot run it."""
        if self.sparsity is not None:
            check_is_sparse(activation, self.sparsity)
        if self.activation_threshold is not None:
            check_is_cuttable(activation, "activation_threshold")

    def attached(self, sparse: LoadedModel, options: EngineOptions) -> LoadedModel:
        """Return a model with the same weights that runs this setting.

        Args:
            sparse: model loaded with the sparsity `exact`, or `off` for thresholds.
        """
        wanted = self.options(options)
        if self.sparsity is None or self.is_calibrated:
            sparsity = attach_sparsity(sparse.model, sparse.file, sparse.tokenizer, wanted)
        else:
            sparsity = attach_uncalibrated(sparse.model, self.sparsity)
        return replace(sparse, model=sparsity.model, sparsity=sparsity, options=wanted)


def read_setting(name: str, max_ffn_error: float | None = None) -> Setting:
    """Return the setting of a name: a value of `--sparsity`, `default`, or `threshold:X`.

    Raises:
        PromptError: X is not a value of `--activation-threshold`.
    """
    kind, _, value = name.partition(":")
    if kind == THRESHOLD:
        try:
            threshold = read_activation_threshold(value or AUTO)
        except ValueError as error:
            raise PromptError(f"setting {name!r:.60}: the threshold must be {error}") from None
        return Setting(None, max_ffn_error, activation_threshold=threshold)
    return Setting(None if name == _DEFAULT else name, max_ffn_error)
