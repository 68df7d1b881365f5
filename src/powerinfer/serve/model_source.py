"""What a server may load: a model by its names, the facts of its file, and how it is loaded."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from powerinfer.loading.loader import Progress
from powerinfer.serve.served_model import ServedModel

__all__ = ["FileStamp", "ModelFacts", "ModelSource", "stamp_of"]

FileStamp: TypeAlias = tuple[int, int, int]
"""Changes when a file is written or replaced: time, size and number of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of a model's file.

    Attributes:
        weight_bytes: size of all weights.
        needed_bytes: memory that the model takes: weights, KV cache and states.
        context_length: most tokens of a prompt and its answer.
        trained_length: the same, as the file says.
    """

    weight_bytes: int
    needed_bytes: int
    context_length: int
    trained_length: int


@dataclass(slots=True, kw_only=True)
class ModelSource:
    """A model that a server loads when a request asks for it.

    Attributes:
        names: names for clients; the first is shown to them.
        path: the file, or the first one of a split file.
        load: loads the model, which takes a while; called in a thread, with what to tell of it.
        read_facts: reads the facts of the file, which takes a moment.
        is_story_model: the model of the package, which continues stories.
    """

    names: tuple[str, ...]
    path: Path
    load: Callable[[Progress], ServedModel]
    read_facts: Callable[[], ModelFacts]
    is_story_model: bool = False
    _known: tuple[FileStamp | None, ModelFacts] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def facts(self) -> ModelFacts:
        """Return the facts of the file as it is now; slow if it has changed.

        Raises:
            PowerInferError: it is missing, damaged or not supported.
        """
        with self._lock:
            # Before the file is read: if it is replaced meanwhile, it has changed.
            stamp = stamp_of(self.path)
            if self._known is None or stamp is None or self._known[0] != stamp:
                self._known = None
                self._known = stamp, self.read_facts()
            return self._known[1]


def stamp_of(path: Path) -> FileStamp | None:
    """Return the stamp of a file; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
