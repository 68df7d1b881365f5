"""Import of lm-eval before a model is loaded, with an error that says why it fails."""

import importlib.util
import logging
import os

from powerinfer._extras import how_to_install
from powerinfer.errors import UnsupportedError

__all__ = ["prepare_lm_eval"]

_LONGEST_REASON = 200


def prepare_lm_eval(what: str) -> str:
    """Import lm-eval, which takes seconds, without access to the network; return its version.

    Raises:
        UnsupportedError: it is not installed, or cannot be imported.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise UnsupportedError(
            f"{what} needs lm-eval, which is not installed", remedy=how_to_install("eval")
        )
    # `datasets` reads this on import. Our data sets come from files.
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    try:
        import lm_eval.evaluator
    except ImportError as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise UnsupportedError(
            f"{what} needs lm-eval, which cannot be imported: {reason}",
            remedy=f"reinstall it: {how_to_install('eval')}",
        ) from None
    # Its messages about every task are of no use to those who wrote none.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return str(lm_eval.__version__)
