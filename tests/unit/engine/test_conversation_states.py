"""A conversation with a model with state goes on where its last message ended."""

from dataclasses import replace
from pathlib import Path

import pytest

from powerinfer import LLM, SamplingParams
from powerinfer.engine.conversation import Conversation
from powerinfer.prompts.messages import message_ends
from tiny_models import TINY_MODELS, write_model

TEXT = "Tell me once more of the old tower and of the sea."


@pytest.mark.parametrize("name", ["lfm2", "mamba2", "nemotron_h_moe"])
def test_a_conversation_computes_what_is_new(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", replace(TINY_MODELS[name], context_length=640))
    with LLM(path, kernels="reference", reuse_prefix=True) as llm:
        chat = Conversation(
            llm,
            SamplingParams(seed=1, max_tokens=8),
            as_text=lambda messages: "".join(f"{m['content']}</s>" for m in messages) + "Answer:",
        )
        kept, computed, expected = 0, [], []
        for _ in range(3):
            list(chat.ask(TEXT))
            assert chat.last is not None
            computed.append(chat.last.metrics.prefill_tokens)
            prompt = chat._history[: len(chat._history) - len(chat.last.token_ids)]
            expected.append(len(prompt) - kept)
            assert all(is_prompt for _, is_prompt in prompt)
            # Up to the word that begins the answer.
            kept = message_ends(llm.loaded.tokenizer, [token_id for token_id, _ in prompt])[-1]
        assert computed == expected
        assert computed[2] < len(prompt) / 2
        chat.undo()
        list(chat.ask("Tell me of the sea, then."))
        assert chat.last is not None
        assert chat.last.metrics.prefill_tokens < computed[2]
