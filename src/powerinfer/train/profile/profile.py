"""The whole of a profile: count, keep what is counted, write the folder."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from powerinfer._replacing import make_folder_of
from powerinfer.errors import PowerInferError
from powerinfer.gguf import model_identity
from powerinfer.loading.loader import LoadedModel
from powerinfer.placement.activation_record import MOST_TOKENS, ActivationProfile, Counted
from powerinfer.train.profile.counting import ProfileRun
from powerinfer.train.profile.folder import (
    check_target,
    checkpoint_path,
    finished_profile,
    write_profile,
)
from powerinfer.train.texts import TokenWindows, text_identity

__all__ = ["WINDOW", "Outcome", "Progress", "make_profile"]

WINDOW = 512
"""Tokens of a window, unless the model's context is shorter."""

Progress = Callable[[float, int, float], None]
"""Called with the share that is done, tokens counted, and tokens per second."""

_SAVE_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A profile, and what it took.

    Attributes:
        profile: of all tokens.
        new_tokens: that were counted now and not by an earlier run.
        seconds: it took to count them.
    """

    profile: ActivationProfile
    new_tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of counting; None where nothing was counted."""
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

    A run that was stopped goes on from its last checkpoint, a finished one is only read.

    Args:
        loaded: a model on the CPU whose activation is sparse.
        texts: files, one after the other.
        folder: to write.
        window: tokens that see each other.
        limit: most tokens to count; None for all.
        progress: told after each batch.
        stopped: told how many tokens are counted and saved, where a signal ends it.

    Raises:
        PlacementError: the folder has counts of another model or program.
        NumericsError: the model produced NaN or infinity.
        PowerInferError: a text cannot be read or is too short, a file cannot be written, or the
            folder has an unfinished profile of something else.
    """
    model, tokenizer = loaded.model, loaded.tokenizer
    if limit is not None:
        limit = min(limit, MOST_TOKENS)
        window = max(2, min(window, limit))
    bos_id = tokenizer.bos_id if tokenizer.add_bos else None
    windows = TokenWindows(
        texts, lambda text: tokenizer.encode(text, add_bos=False), window, bos_id
    )
    identity = model_identity(loaded.file)
    counted = Counted(identity, str(model.config.activation), text_identity(texts), window, limit)
    check_target(folder, identity)
    found = finished_profile(folder, counted, model.config.num_layers, model.config.num_neurons)
    if found is not None:
        return Outcome(found, 0, 0.0)
    make_folder_of(checkpoint_path(folder), error=PowerInferError)
    run = ProfileRun(model, windows, counted, checkpoint_path(folder))
    before, began = run.num_tokens, time.perf_counter()
    _count(run, progress, stopped)
    seconds = time.perf_counter() - began
    profile = run.profile(tuple(path.name for path in texts))
    write_profile(folder, profile)
    return Outcome(profile, run.num_tokens - before, seconds)


def _count(
    run: ProfileRun, progress: Progress | None, stopped: Callable[[int], None] | None
) -> None:
    """Count to the end, and save now and then, also where a signal ends it."""
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
