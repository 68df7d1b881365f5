"""Ctrl-C at any moment leaves the model usable, for the same thread and for others."""

import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from powerinfer import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
PROMPT = "Once upon a time"


@pytest.fixture
def _raising_alarm() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


# A destructor that is interrupted says so, and has nothing left to do.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("_raising_alarm")
def test_interrupts_at_any_moment_leave_the_model_usable() -> None:
    random = np.random.default_rng(1)
    with LLM(threads=1, context_length=64) as llm:
        wanted = llm.generate(PROMPT, PARAMS)[0].text
        is_over, found = threading.Event(), list[str]()

        def use_meanwhile() -> None:
            while not is_over.is_set():
                found.append(llm.generate(PROMPT, PARAMS)[0].text)

        other = threading.Thread(target=use_meanwhile)
        other.start()
        num_interrupts = 0
        while num_interrupts < 150:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + 0.02 * random.random())
                while True:
                    _use(llm, int(random.integers(3)), wanted)
            except KeyboardInterrupt:
                num_interrupts += 1
        is_over.set()
        other.join(60)
        assert not other.is_alive()
        assert set(found) == {wanted}
        assert llm.generate(PROMPT, PARAMS)[0].text == wanted


def _use(llm: LLM, manner: int, wanted: str) -> None:
    if manner == 0:
        assert llm.generate(PROMPT, PARAMS)[0].text == wanted
    elif manner == 1:
        assert "".join(llm.stream(PROMPT, PARAMS)) == wanted
    else:
        assert wanted.startswith(next(llm.stream(PROMPT, PARAMS)))
