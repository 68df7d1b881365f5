"""One pass of a model over windows of text, watched by who measures something."""

from powerinfer.errors import NumericsError
from powerinfer.models import Model
from powerinfer.models.blocks import Observer
from powerinfer.values import IntArray

__all__ = ["AllObserved", "run_windows"]


class AllObserved(Exception):  # noqa: N818  no error: it ends a pass whose rest nobody needs
    """Raised by an observer that has seen the last layer's FFN input."""


def run_windows(model: Model, windows: IntArray, observe: Observer) -> None:
    """Run all windows as one batch, until the observer has seen what it needs.

    Args:
        model: to run.
        windows: i32[num_windows, window], token ids; no window sees another.
        observe: sees each layer's stages, all windows' tokens at once, and raises `AllObserved`
            in the last one.
    """
    cache = model.new_cache(windows.shape[0] * (windows.shape[1] + 64))
    batch = cache.batch([(number, ids, 0) for number, ids in enumerate(windows)])
    try:
        model.forward(batch, cache, observe=observe)
    except AllObserved:
        return
    raise NumericsError("the model ended before its last FFN")  # pragma: no cover
