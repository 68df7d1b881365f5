"""Features of a question's text, all that a bandit knows of a task."""

import re
import zlib

import numpy as np
import numpy.typing as npt

__all__ = ["NUM_FEATURES", "features"]

NUM_FEATURES = 256
_TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")


def features(question: str) -> npt.NDArray[np.float64]:
    """Hash words and signs of a question; numbers count by their length.

    Returns:
        f64[NUM_FEATURES] of unit length; which tokens occur, not how often, and a constant.
    """
    tokens = {
        f"#{min(len(each), 5)}" if each.isdigit() else each
        for each in _TOKEN.findall(question.casefold())
    }
    found = np.zeros(NUM_FEATURES)
    found[0] = 1.0
    for token in tokens:
        found[1 + zlib.crc32(token.encode()) % (NUM_FEATURES - 1)] = 1.0
    return found / np.linalg.norm(found)
