"""System prompts that chat templates write by themselves."""

import pytest

from chat_tokenizers import chat_tokenizer
from powerinfer.prompts.system_prompt import builtin_system_prompt
from template_cases import TEMPLATES

_SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n' }}"
    "{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_BEGINNINGS = {
    "Mistral-Small-3.2-24B-Instruct-2506": "You are Mistral Small 3, a Large Language Model",
    "ibm-granite-granite-3.3-2B-Instruct": "Knowledge Cutoff Date: April 2024.",
    "ibm-granite-granite-4.0": "You are a helpful assistant. Please ensure",
    "meta-llama-Llama-3.1-8B-Instruct": "<|start_header_id|>system<|end_header_id|>\n\nCutting",
    "openai-gpt-oss-120b": "<|start|>system<|message|>You are ChatGPT",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_well_known_models(name: str) -> None:
    found = builtin_system_prompt(chat_tokenizer(name))
    begins = _BEGINNINGS.get(name)
    assert found is None if begins is None else (found or "").startswith(begins)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (_SMOLLM2, "You are a helpful AI assistant named SmolLM"),
        ("{{ raise_exception('no') }}", None),
        ("nothing of the messages", None),
        ("Always this. {% for m in messages %}[{{ m.content }}]{% endfor %}", "Always this."),
        (
            "Once. {% if messages | length > 1 %}{{ raise_exception('one') }}{% endif %}"
            "{{ messages[0].content }}",
            None,
        ),
    ],
    ids=["smollm2", "refuses", "silent", "before", "one message"],
)
def test_templates_by_their_source(template: str, found: str | None) -> None:
    assert builtin_system_prompt(chat_tokenizer(template)) == found
