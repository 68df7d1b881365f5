"""A whole profile: count, save now and then, write the folder."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from powerinfer._replacing import make_folder_of
from powerinfer.calibration.text import WINDOW
from powerinfer.errors import PlacementError, PowerInferError
from powerinfer.gguf import model_identity
from powerinfer.loading.loader import LoadedModel
from powerinfer.models.sparsity import layers_to_count
from powerinfer.placement.activation_folder import has_counts, read_profile
from powerinfer.placement.activation_record import (
    ACTIVATION,
    MOST_TOKENS,
    ActivationProfile,
    Counted,
    record_path,
)
from powerinfer.train.checkpoint import write_torch_file
from powerinfer.train.profile.counting import ProfileRun
from powerinfer.train.token_windows import TokenWindows, text_identity

__all__ = ["Outcome", "Progress", "make_profile"]

Progress = Callable[[float, int, float], None]
"""Called with the share that is done, tokens counted, and tokens per second."""

_SAVE_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A profile, and what it took.

    Attributes:
        new_tokens: counted now and not by an earlier run.
    """

    profile: ActivationProfile
    new_tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of counting; None if nothing was counted."""
        return self.new_tokens / self.seconds if self.new_tokens else None


def make_profile(
    loaded: LoadedModel,
    texts: Sequence[Path],
    folder: Path,
    *,
    window: int = WINDOW,
    limit: int | None = None,
    progress: Progress | None = None,
    stopped: Callable[[int], None] | None = None,
) -> Outcome:
    """Count how often each neuron fires over texts, and write the folder `activation`.

    A run that was stopped resumes from its last checkpoint, a finished one is only read. The model
    is on the CPU, with a sparse activation. At most `limit` tokens are counted. `progress` is
    called after each batch, `stopped` with the tokens counted and saved if a signal ends the run.

    Raises:
        PlacementError: the folder has counts of another model or program.
        NumericsError: the model produced NaN or infinity.
        PowerInferError: a text cannot be read or is too short, a file cannot be written, or the
            folder has an unfinished profile of something else.
    """
    model = loaded.model
    if limit is not None:
        limit = min(limit, MOST_TOKENS)
        window = max(2, min(window, limit))
    windows = TokenWindows.of_model(texts, loaded.tokenizer, window)
    identity = model_identity(loaded.file)
    counted = Counted(identity, str(model.config.activation), text_identity(texts), window, limit)
    _check_target(folder, identity)
    num_layers = len(layers_to_count(model.config))
    found = _finished_profile(folder, counted, num_layers, model.config.num_neurons)
    if found is not None:
        return Outcome(found, 0, 0.0)
    make_folder_of(_checkpoint_path(folder), error=PowerInferError)
    run = ProfileRun(model, windows, counted, _checkpoint_path(folder))
    before, began = run.num_tokens, time.perf_counter()
    _count(run, progress, stopped)
    seconds = time.perf_counter() - began
    profile = run.profile(tuple(path.name for path in texts))
    _write_profile(folder, profile)
    return Outcome(profile, run.num_tokens - before, seconds)


def _count(
    run: ProfileRun, progress: Progress | None, stopped: Callable[[int], None] | None
) -> None:
    """Count to the end, and save now and then, also when a signal ends it."""
    before = run.num_tokens
    began = saved = time.monotonic()
    try:
        while run.advance():
            now = time.monotonic()
            if progress is not None:
                progress(run.done_share, run.num_tokens, (run.num_tokens - before) / (now - began))
            if now - saved >= _SAVE_EVERY_S:
                run.save()
                saved = now
    except (KeyboardInterrupt, SystemExit):
        with suppress(PowerInferError):
            run.save()
            if stopped is not None:
                stopped(run.num_tokens)
        raise


def _checkpoint_path(folder: Path) -> Path:
    """Path of the counts of an unfinished profile."""
    return folder / "profile.checkpoint"


def _check_target(folder: Path, model_identity: str) -> None:
    """Check that nothing is replaced but an older profile of the same model."""
    path = record_path(folder)
    if path.exists():
        found = ACTIVATION.read(path).counted.model_identity
        if found != model_identity:
            raise PlacementError(
                f"{folder}: has the profile of another model (identity {found[:12]}..., this one's "
                f"is {model_identity[:12]}...), which would be lost",
                remedy="name another folder with {output}, or remove that one",
            )
    elif has_counts(folder) and not _checkpoint_path(folder).exists():
        raise PlacementError(
            f"{folder}: has counts that another program wrote, which would be lost",
            remedy="name another folder with {output}, or remove that one",
        )


def _finished_profile(
    folder: Path, counted: Counted, num_layers: int, num_neurons: int
) -> ActivationProfile | None:
    """The profile that an earlier run finished; None if it has to be counted."""
    try:
        found = read_profile(folder, num_layers=num_layers, num_neurons=num_neurons)
    except PlacementError:
        return None  # it is counted again
    return found if found is not None and found.record.counted == counted else None


def _write_profile(folder: Path, profile: ActivationProfile) -> None:
    """Write `activation_N.pt` of each layer, then `activation.json`; remove the checkpoint.

    Layers are numbered from 0, those without counts left out.

    The older `activation.json` says of newer counts that they do not belong to it, so that a kill
    at any moment leaves nothing that could be misread.
    """
    for number, counts in enumerate(profile.counts):
        path = folder / f"activation_{number}.pt"
        make_folder_of(path, error=PowerInferError)
        write_torch_file(path, torch.from_numpy(counts.copy()))
    ACTIVATION.write(record_path(folder), profile.record)
    with suppress(OSError):
        _checkpoint_path(folder).unlink(missing_ok=True)
