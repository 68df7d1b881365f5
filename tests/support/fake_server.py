"""`powerinfer serve` with an engine that plays a script: for tests of HTTP that need no model.

Run as a program; takes the flags of `powerinfer serve`. Loading takes as many seconds as the
environment variable LOAD_S says.
"""

import os
import sys
import time
from typing import Any
from unittest.mock import patch

from api_client import embedded_tokenizer
from fake_engine import FakeEngine
from powerinfer.cli import model
from powerinfer.cli.main import main
from powerinfer.serve.served_model import ServedModel

STEP_S = 0.001
CONTEXT_LENGTH = 4096


def fake_model(_model: Any, options: Any) -> ServedModel:
    """A model whose texts go on until a limit ends them."""
    time.sleep(float(os.environ.get("LOAD_S", "0")))
    engine = FakeEngine(
        ["word "] * CONTEXT_LENGTH,
        context_length=CONTEXT_LENGTH,
        parallel=options["parallel"],
        step_s=STEP_S,
    )
    tokenizer = embedded_tokenizer()
    return ServedModel(engine=engine, tokenizer=tokenizer, context_length=CONTEXT_LENGTH)


if __name__ == "__main__":
    # Fails where nothing has that name.
    with patch.object(model, "load_for_serving", fake_model):
        main(["serve", *sys.argv[1:]], prog_name="powerinfer")
