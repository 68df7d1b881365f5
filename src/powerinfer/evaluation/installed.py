"""Imports lm-eval before a model is loaded, or says why it cannot be imported."""

import importlib.util
import logging
import os

from powerinfer._extras import how_to_install
from powerinfer.errors import UnsupportedError

__all__ = ["prepare_lm_eval"]

_LONGEST_REASON = 200


def prepare_lm_eval(what: str) -> str:
    """Import lm-eval, which takes seconds, so that it asks the network for nothing.

    Args:
        what: needs it, for messages.

    Returns:
        Its version.

    Raises:
        UnsupportedError: it is not installed, or cannot be imported.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise UnsupportedError(
            f"{what} needs lm-eval, which is not installed", remedy=how_to_install("eval")
        )
    # `datasets` reads it when it is imported; data sets are made here, from files.
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    try:
        import lm_eval.evaluator
    except ImportError as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise UnsupportedError(
            f"{what} needs lm-eval, which cannot be imported: {reason}",
            remedy=f"install it anew: {how_to_install('eval')}",
        ) from None
    # What it says of every task is of no use to those who wrote none.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return str(lm_eval.__version__)
