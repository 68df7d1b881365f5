"""The embedded model writes what it always wrote, and computes the same bits on the way.

For one kernel table the bits are the same on every machine, by any compiler and with any number of
threads: the kernels fix the order of every sum and say themselves where a product is fused with
one. A change of numerics therefore changes a digest, also where the text stays as it is. Only
cosines and sines come from elsewhere: should numpy round one of them differently on another
machine, log probabilities may be off by a unit of the fourth decimal, and digests say nothing.

After an intended change of numerics, scripts/make-goldens-embedded writes these files anew.
"""

import json

import pytest

from embedded_text import FOLDER, KERNELS, NUM_TOKENS, Golden, write_text
from powerinfer.ops.cpu.machine import machine_info


@pytest.fixture(
    scope="module", params=[name for name in KERNELS if name in machine_info().available_kernels]
)
def pair(request: pytest.FixtureRequest) -> tuple[Golden, Golden]:
    """What was written now, and what is stored."""
    kernels: str = request.param
    stored: Golden = json.loads((FOLDER / f"{kernels}.json").read_text(encoding="utf-8"))
    return write_text(kernels), stored


def test_the_text_is_the_stored_one(pair: tuple[Golden, Golden]) -> None:
    got, stored = pair
    assert len(stored["token_ids"]) == NUM_TOKENS
    assert got["token_ids"] == stored["token_ids"]
    assert got["text"] == stored["text"]


def test_every_token_is_as_likely_as_it_was(pair: tuple[Golden, Golden]) -> None:
    got, stored = pair
    assert got["log_probs"] == pytest.approx(stored["log_probs"], rel=0, abs=1e-4)


def test_the_logits_are_the_same_bits(pair: tuple[Golden, Golden]) -> None:
    got, stored = pair
    if got["rope_sha256"] != stored["rope_sha256"]:
        pytest.skip("numpy rounds cosines differently here")
    assert got["logits_sha256"] == stored["logits_sha256"]
