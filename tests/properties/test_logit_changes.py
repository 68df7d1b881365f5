"""Properties of what changes logits, against a slow and obvious version."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.sampling.logit_processors import LogitChanges
from powerinfer.sampling.sampling_params import SamplingParams

SIZE = 6
penalties = st.floats(-3, 3, width=32)


def by_hand(logits: list[float], token_ids: list[int], params: SamplingParams) -> list[float]:
    """Token by token, in float64."""
    window = token_ids[-params.repeat_last_n :] if params.repeat_last_n else []
    changed = []
    for token_id, logit in enumerate(logits):
        value = logit + (params.logit_bias or {}).get(token_id, 0)
        count = window.count(token_id)
        if count:
            value = value / params.repeat_penalty if value > 0 else value * params.repeat_penalty
            value -= params.presence_penalty + count * params.frequency_penalty
        changed.append(value)
    return changed


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=SIZE, max_size=SIZE),
    token_ids=st.lists(st.integers(0, SIZE - 1), max_size=20),
    repeat=st.floats(0.5, 2, width=32),
    presence=penalties,
    frequency=penalties,
    window=st.integers(0, 25),
    bias=st.dictionaries(st.integers(1, SIZE - 1), penalties | st.just(-np.inf)),
)
def test_changes_equal_the_definition(
    logits: list[float],
    token_ids: list[int],
    repeat: float,
    presence: float,
    frequency: float,
    window: int,
    bias: dict[int, float],
) -> None:
    params = SamplingParams(
        repeat_penalty=repeat,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repeat_last_n=window,
        logit_bias=bias,
    )
    got = LogitChanges(params).apply(np.array(logits, np.float32), token_ids)
    # Sums of numbers up to 100 in f32: half a unit of 24 bits each.
    np.testing.assert_allclose(got, by_hand(logits, token_ids, params), rtol=1e-5, atol=5e-5)
