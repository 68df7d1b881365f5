"""What sampling parameters may be, and what is kept of them."""

from typing import get_type_hints

import numpy as np
import pytest

from powerinfer.errors import PromptError
from powerinfer.options.option import Option, options_of
from powerinfer.sampling.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("temperature", 10**400),
        ("top_p", -(10**400)),
        ("repeat_penalty", 10**400),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", float("inf")),
        ("repeat_penalty", 1e300),
        ("repeat_last_n", -1),
        ("presence_penalty", 1000.5),
        ("frequency_penalty", float("nan")),
        ("logit_bias", [1]),
        ("logit_bias", {"1": 2.0}),
        ("logit_bias", {-1: 2.0}),
        ("logit_bias", {True: 2.0}),
        ("logit_bias", {1: float("inf")}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {1: 2e9}),
        ("logit_bias", {1: "much"}),
        ("logits_processors", None),
        ("logits_processors", [3]),
        ("logprobs", -1),
        ("n", 0),
        ("seed", -1),
        ("max_tokens", -1),
        ("max_tokens", True),
        ("stop", [""]),
        ("stop", ""),
        ("stop", [1]),
        ("stop", None),
        ("stop", 5),
        ("stop", b"end"),
    ],
)
def test_bad_parameters_are_named(name: str, value: object) -> None:
    with pytest.raises(PromptError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_one_stop_string_needs_no_list() -> None:
    assert SamplingParams(stop="end").stop_strings == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("temperature", -1, "a finite number, 0 or more"),
        ("top_k", -1, "a whole number, 0 or more (0 keeps all)"),
        ("top_p", 0, "above 0 and at most 1"),
        ("min_p", 2, "from 0 to 1"),
        ("repeat_penalty", 0.0009, "from 0.001 to 1000 (1 changes nothing)"),
        ("repeat_penalty", 1000.5, "from 0.001 to 1000 (1 changes nothing)"),
        ("repeat_last_n", -1, "a whole number, 0 or more"),
        ("seed", -1, "a whole number, 0 or more, or None for a random one"),
        ("max_tokens", -1, "a whole number, 0 or more, or None for no limit"),
        ("stop", 5, "a text or a list of texts"),
        ("stop", "", "a text that is not empty: an empty one stops before the first token"),
    ],
)
def test_an_error_says_which_parameter_and_what_is_wanted(
    name: str, value: object, wanted: str
) -> None:
    with pytest.raises(PromptError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"sampling parameter {name} must be {wanted}, got {value!r}"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", (0, 1e30)),
        ("top_k", (0, 1)),
        ("top_p", (1e-9, 1, 1.0)),
        ("min_p", (0, 1, 1.0)),
        ("repeat_penalty", (1e-3, 1, 1e3)),
        ("repeat_last_n", (0,)),
        ("presence_penalty", (-1000, 1000.0)),
        ("frequency_penalty", (-1000, 1000.0)),
        ("logit_bias", (None, {}, {0: -np.inf, 5: 1e9, 6: -1e9})),
        ("logits_processors", ((), [], [np.negative])),
        ("logprobs", (None, 0)),
        ("n", (1,)),
        ("seed", (None, 0)),
        ("max_tokens", (None, 0)),
        ("stop", ((), [], ["a"], "a")),
    ],
)
def test_values_at_the_ends_of_a_range_are_allowed(name: str, values: tuple[object, ...]) -> None:
    for value in values:
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_scalars_of_numpy_become_those_of_python() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        seed=np.array(7),  # type: ignore[arg-type]
        ignore_eos=np.True_,  # type: ignore[arg-type]
        logit_bias={np.int32(2): np.float64(1.5)},  # type: ignore[dict-item]
    )
    assert params == SamplingParams(
        temperature=0.5, top_k=3, seed=7, ignore_eos=True, logit_bias={2: 1.5}
    )
    kept = (params.temperature, params.top_k, params.seed, params.ignore_eos)
    assert [type(value) for value in kept] == [float, int, int, bool]
    assert [type(each) for pair in (params.logit_bias or {}).items() for each in pair] == [
        int,
        float,
    ]
    with pytest.raises(PromptError, match="top_k must be a whole number, 0 or more"):
        SamplingParams(top_k=np.float32(2.5))  # type: ignore[arg-type]
    with pytest.raises(PromptError, match="top_k"):
        SamplingParams(top_k=np.array([2]))  # type: ignore[arg-type]


def test_parameters_keep_what_they_were_made_of() -> None:
    bias, stops = {1: 2.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stops)
    bias[1], stops[0] = float("nan"), ""
    assert params == SamplingParams(logit_bias={1: 2.0}, stop=("a",))


def test_parameters_can_be_keys() -> None:
    bias = SamplingParams(logit_bias={1: 2.0}, stop=["a"])
    assert {bias: 1}[SamplingParams(logit_bias={1: 2.0}, stop=["a"])] == 1
    assert SamplingParams(logit_bias={1: 3.0}, stop=["a"]) not in {bias: 1}


def test_a_parameter_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = Option.read

    def counting(self: Option, name: str, value: object, what: str = "option") -> object:
        read.append(name)
        return original(self, name, value, what)

    monkeypatch.setattr(Option, "read", counting)
    params = SamplingParams(top_k=3)
    # None needs no reading.
    assert read == [
        name for name in options_of(SamplingParams) if getattr(params, name) is not None
    ]


def test_types_can_be_asked_for_at_run_time() -> None:
    assert list(get_type_hints(SamplingParams)) == list(options_of(SamplingParams))
