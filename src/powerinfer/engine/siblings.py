"""The texts of one request: one of them computes the prompt, the others begin with its blocks."""

from collections.abc import Iterable

from powerinfer.engine.sequence import RunningSequence
from powerinfer.engine.text import Text
from powerinfer.values import FloatArray

__all__ = ["Siblings"]


class Siblings:
    """What the texts of a request share until the last of them has begun.

    Attributes:
        not_begun: texts that have not been admitted, in order.
        logits: f32[vocab_size] behind the prompt; None until it is computed.
        spare: sequence of a text that is over, kept because nobody else holds the prompt.
    """

    def __init__(self, texts: Iterable[Text]) -> None:
        """Start with a prompt that is not computed.

        Args:
            texts: of the request but its first, which computes the prompt.
        """
        self.not_begun = list(texts)
        self.logits: FloatArray | None = None
        self.spare: RunningSequence | None = None
        self._holders: list[RunningSequence] = []

    def join(self, sequence: RunningSequence) -> None:
        """A sequence that runs begins with the prompt."""
        self._holders.append(sequence)

    def leave(self, sequence: RunningSequence) -> None:
        """It is over."""
        if sequence in self._holders:
            self._holders.remove(sequence)

    @property
    def holder(self) -> RunningSequence | None:
        """A sequence that runs whose blocks still begin with the prompt; None: there is none."""
        return next((each for each in self._holders if not each.num_shifts), None)
