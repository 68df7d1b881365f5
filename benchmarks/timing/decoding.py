"""Times decode steps of several models in turn, so that a busy machine is the same for all."""

import time
from collections.abc import Sequence
from typing import Any

from powerinfer import LLM

__all__ = ["CONTEXT", "TurnDecoder", "decode_in_turns"]

CONTEXT = 512
_PROMPT = 64
# Tokens of a turn; the first is not timed, since caches are cold.
_TURN = 8
_SHARES = {"best": 0.0, "p10": 0.1, "median": 0.5}


class TurnDecoder:
    """Decodes a text again and again, some tokens a turn."""

    def __init__(self, llm: LLM, text: str) -> None:
        """Take a model with a context of `CONTEXT`, and a text of more tokens than that."""
        self._llm = llm
        self._token_ids = llm.encode(text)[: CONTEXT - 1]
        self._place = len(self._token_ids)
        self.step_s: list[float] = []

    def turn(self) -> None:
        """Decode some tokens and time all but the first."""
        if self._place + _TURN > len(self._token_ids):
            self._sequence = self._llm.new_sequence()
            self._sequence.extend(self._token_ids[:_PROMPT])
            self._place = _PROMPT
        for number in range(_TURN):
            started = time.perf_counter()
            self._sequence.append(self._token_ids[self._place])
            if number:
                self.step_s.append(time.perf_counter() - started)
            self._place += 1

    def times(self) -> dict[str, Any]:
        """Number of steps, and milliseconds of the best, the tenth percentile and the median."""
        ascending = sorted(self.step_s)
        found: dict[str, Any] = {"steps": len(ascending)}
        for name, part in _SHARES.items():
            found[f"{name}_ms"] = round(1e3 * ascending[int(part * len(ascending))], 3)
        return found


def decode_in_turns(decoders: Sequence[TurnDecoder], seconds: float) -> None:
    """Let each decode in turn until the time is over, at least once."""
    end = time.perf_counter() + seconds
    while not decoders[-1].step_s or time.perf_counter() < end:
        for decoder in decoders:
            decoder.turn()
