"""One live server for the tests of all clients."""

import gc
import warnings
from collections.abc import Iterator

import pytest

from client_cases import continuation, serving_a_chat_model
from serving import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_a_chat_model(tmp_path_factory.mktemp("model")) as running:
        yield running
        # Connections that clients leave open would be errors at the end of the run.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture(scope="session")
def expected() -> str:
    """What the engine itself generates after the prompt, greedily."""
    return continuation()
