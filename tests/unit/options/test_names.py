"""Names and values of options that a caller gets wrong, and what the message says."""

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from powerinfer import LLM, PromptError, SamplingParams, UnsupportedError


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("keep", "keep_tokens"),
        ("n_ctx", "context_length"),
        ("ctx_size", "context_length"),
        ("n_gpu_layers", "vram_budget"),
    ],
)
def test_names_of_flags_and_of_other_libraries_lead_to_the_option(name: str, meant: str) -> None:
    with pytest.raises(UnsupportedError, match=f"Did you mean '{meant}'"):
        LLM(**{name: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "meant"), [("temp", "temperature"), ("max_new_tokens", "max_tokens")]
)
def test_the_same_for_sampling_parameters(name: str, meant: str) -> None:
    with pytest.raises(UnsupportedError, match=f"Did you mean '{meant}'"):
        SamplingParams(**{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["seed", "max_tokens"])
def test_minus_one_is_none_in_python(name: str) -> None:
    with pytest.raises(PromptError, match="or None for"):
        SamplingParams(**{name: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["seed", "sed"])
def test_parameters_cannot_be_changed(name: str) -> None:
    with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
        setattr(SamplingParams(), name, 5)


def test_a_bias_cannot_be_changed_but_copied_and_pickled() -> None:
    params = SamplingParams(logit_bias={7: 1.5})
    with pytest.raises(TypeError):
        params.logit_bias[7] = 2.0  # type: ignore[index]
    assert params.logit_bias == {7: 1.5}
    assert pickle.loads(pickle.dumps(params)) == params == replace(params)


@pytest.mark.parametrize("role", ["tool", "frog", "User", ""])
def test_a_plain_dialogue_refuses_roles_that_it_does_not_know(role: str) -> None:
    refused = pytest.raises(PromptError, match=rf"roles system, user and assistant, not '{role}'")
    with LLM(context_length=64) as llm, refused:
        llm.chat([{"role": role, "content": "Hello"}])
