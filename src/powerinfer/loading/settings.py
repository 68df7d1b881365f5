"""Settings of `--sparsity` for comparisons on the same weights."""

from dataclasses import dataclass, replace

from powerinfer.calibration.sparsity import attach_sparsity, attach_uncalibrated
from powerinfer.loading.loader import LoadedModel
from powerinfer.options.option_kinds import read_sparsity
from powerinfer.options.options import EngineOptions

__all__ = ["Setting", "read_setting"]

_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """Values of `--sparsity` and `--max-ffn-error`.

    Attributes:
        max_ffn_error: dial; None for the calibrated value.
        is_calibrated: False for a predictor kind at its default threshold, without a dial, even if
            there is a calibration.
    """

    sparsity: str | None
    max_ffn_error: float | None = None
    is_calibrated: bool = True

    def __str__(self) -> str:
        name = self.sparsity or _DEFAULT
        if not self.is_calibrated:
            return f"{name} @ {_DEFAULT}"
        return name if self.max_ffn_error is None else f"{name} @ {self.max_ffn_error:g}"

    def options(self, options: EngineOptions) -> EngineOptions:
        """Return the options of an engine that runs this setting."""
        sparsity = None if self.sparsity is None else read_sparsity(self.sparsity)
        return replace(options, sparsity=sparsity, max_ffn_error=self.max_ffn_error)

    def attached(self, sparse: LoadedModel, options: EngineOptions) -> LoadedModel:
        """Return a model with the same weights that runs this setting.

        Args:
            sparse: model loaded with the sparsity `exact`.
        """
        wanted = self.options(options)
        if self.sparsity is None or self.is_calibrated:
            sparsity = attach_sparsity(sparse.model, sparse.file, sparse.tokenizer, wanted)
        else:
            sparsity = attach_uncalibrated(sparse.model, self.sparsity)
        return replace(sparse, model=sparsity.model, sparsity=sparsity, options=wanted)


def read_setting(name: str, max_ffn_error: float | None = None) -> Setting:
    """Return the setting of a name: a value of `--sparsity`, or `default`."""
    return Setting(None if name == _DEFAULT else name, max_ffn_error)
