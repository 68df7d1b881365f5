"""Any mutation of an `activation.json` is read, or is one `PlacementError`: nothing else."""

import json
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from powerinfer.errors import PlacementError
from powerinfer.placement.activation_record import ACTIVATION, ActivationRecord, Counted

RECORD = ActivationRecord(
    Counted("identity", "fatrelu:0.01", "text", 512, 4096), ("a.txt",), 4096, 1024, 4, (9, 8, 7)
)
SEED = ACTIVATION.to_json(RECORD).encode()
KEYS = st.sampled_from(sorted(json.loads(SEED)))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
MOST_BYTES = 2 << 20


def check(data: bytes) -> None:
    """Read within little memory; what is read can be written again."""
    tracemalloc.start()
    try:
        found = ACTIVATION.from_json(data, "activation.json")
        assert ACTIVATION.from_json(ACTIVATION.to_json(found), "again") == found
        assert found.num_tokens >= found.counted.window >= 1
        assert len(found.fired) >= 1
        assert found.num_neurons >= found.num_experts >= 1
        assert len(found.text_names) < 4096
    except PlacementError as error:
        assert "activation.json" in str(error)
        assert len(str(error)) < 1000
        assert "\n" not in str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < MOST_BYTES


@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=8)
)
def test_flipped_bits(flips: list[tuple[float, int]]) -> None:
    data = bytearray(SEED)
    for place, mask in flips:
        data[int(place * len(data))] ^= mask
    check(bytes(data))


@given(cut=st.floats(0, 1), tail=st.binary(max_size=30))
def test_truncated_and_extended(cut: float, tail: bytes) -> None:
    check(SEED[: int(len(SEED) * cut)] + tail)


@given(
    changes=st.dictionaries(KEYS | st.text(max_size=5), VALUES, max_size=4), removed=st.sets(KEYS)
)
def test_changed_fields(changes: dict[str, object], removed: set[str]) -> None:
    fields = {key: value for key, value in json.loads(SEED).items() if key not in removed}
    check(json.dumps(fields | changes).encode())
