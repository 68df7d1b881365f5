"""A program: Ctrl-C at 150 random moments, while another thread uses the same model.

A program of its own, since an exception at any moment may also hit a tool that watches the tests:
coverage would keep its lock for good.
"""

import signal
import sys
import threading
from contextlib import suppress

import numpy as np

from powerinfer import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
PROMPT = "Once upon a time"
NUM_INTERRUPTS = 150


def main() -> None:
    """Interrupt uses of a model; AssertionError where the model is no longer usable."""
    # A destructor that is interrupted says so, and has nothing left to do.
    sys.unraisablehook = lambda _: None
    with LLM(threads=1, context_length=64) as llm:
        wanted = llm.generate(PROMPT, PARAMS)[0].text
        is_over, found = threading.Event(), list[str]()

        def use_meanwhile() -> None:
            while not is_over.is_set():
                found.append(llm.generate(PROMPT, PARAMS)[0].text)

        other = threading.Thread(target=use_meanwhile)
        other.start()
        try:
            _use_and_interrupt(llm, wanted)
        finally:
            is_over.set()
        other.join(60)
        assert not other.is_alive()
        assert set(found) == {wanted}, f"wanted {wanted!r}, found {set(found)!r}"
        assert llm.generate(PROMPT, PARAMS)[0].text == wanted
    print(f"{NUM_INTERRUPTS} interrupts, {len(found)} texts of the other thread")


def _use_and_interrupt(llm: LLM, wanted: str) -> None:
    random = np.random.default_rng(1)
    num_interrupts = 0

    def interrupt(*_: object) -> None:
        nonlocal num_interrupts
        num_interrupts += 1
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    for number in range(NUM_INTERRUPTS):
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 1e-4 + 0.02 * random.random())
            # Counted, since Python drops the exception where it comes in a destructor.
            while num_interrupts == number:
                _use(llm, int(random.integers(3)), wanted)


def _use(llm: LLM, manner: int, wanted: str) -> None:
    if manner == 0:
        assert llm.generate(PROMPT, PARAMS)[0].text == wanted
    elif manner == 1:
        assert "".join(llm.stream(PROMPT, PARAMS)) == wanted
    else:
        assert wanted.startswith(next(llm.stream(PROMPT, PARAMS)))


if __name__ == "__main__":
    main()
