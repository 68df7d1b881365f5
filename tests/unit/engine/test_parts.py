"""Finding models, memory, perplexity, conversations, options of the machine."""

import importlib.resources
import math
import os
from pathlib import Path

import numpy as np
import pytest

from powerinfer import LLM, GGUFError, NumericsError, PromptError, SamplingParams
from powerinfer.engine.conversation import Conversation
from powerinfer.engine.perplexity import Perplexity, count_windows, perplexity_windows
from powerinfer.ops.reference.matrix import ReferenceMatrix
from powerinfer.prompts.messages import FALLBACK_STOP
from powerinfer.store import default_model, memory, threads
from powerinfer.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("no_end_tokens")


class TestFindModel:
    def test_what_was_named_is_opened_as_it_is(self, tmp_path: Path) -> None:
        assert default_model.find_model(str(tmp_path)) == tmp_path

    def test_embedded_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.resources, "files", lambda _: tmp_path)
        with pytest.raises(GGUFError, match=r"no embedded model.*: name the file of a model"):
            default_model.find_model(None)
        folder = tmp_path / "data" / "default"
        folder.mkdir(parents=True)
        (folder / "story.gguf").touch()
        assert default_model.default_model_path() == folder / "story.gguf"


class TestMemory:
    def test_sizes_for_people(self) -> None:
        sizes = [memory.format_bytes(count) for count in (0, 1023, 1536, 5 << 20, 7 << 30)]
        assert sizes == ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "7.00 GiB"]

    def test_a_container_limit_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        meminfo = tmp_path / "meminfo"
        meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
        monkeypatch.setattr(memory, "_MEMINFO", meminfo)
        monkeypatch.setattr(memory, "_CGROUP", tmp_path)
        assert memory.available_memory_bytes() == 4000 * 1024
        (tmp_path / "memory.max").write_text("2000000\n")
        (tmp_path / "memory.current").write_text("1500000\n")
        (tmp_path / "memory.stat").write_text("anon 100\nfile 300000\n")
        assert memory.available_memory_bytes() == 800000
        (tmp_path / "memory.max").write_text("max\n")
        assert memory.available_memory_bytes() == 4000 * 1024

    def test_unknown_systems_have_no_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
        monkeypatch.setattr(memory, "_CGROUP", tmp_path / "none")
        assert memory.available_memory_bytes() is None


def test_hardware_threads_of_a_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpu, shared in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(shared + "\n")
    monkeypatch.setattr(threads, "_CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert threads.physical_cores() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    assert threads.physical_cores() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 6, 7})
    assert threads.physical_cores() == 3


@pytest.mark.parametrize(
    ("cores", "alone", "beside"), [(1, 1, 1), (5, 5, 5), (6, 6, 4), (16, 16, 14)]
)
def test_two_cores_are_left_beside_a_gpu(
    monkeypatch: pytest.MonkeyPatch, cores: int, alone: int, beside: int
) -> None:
    monkeypatch.setattr(threads, "physical_cores", lambda: cores)
    assert threads.default_threads(beside_gpu=False) == alone
    assert threads.default_threads(beside_gpu=True) == beside


class TestPerplexity:
    @pytest.mark.parametrize("batch_size", [3, 8, 512])
    def test_equals_scoring_token_by_token(self, tiny: Path, batch_size: int) -> None:
        llm = LLM(tiny, kernels="reference", batch_size=batch_size)
        ids = [1, *np.random.default_rng(0).integers(3, 280, 39).tolist()]
        *_, estimate = perplexity_windows(llm, ids, 16)
        nll = []
        for start in (0, 16):
            window = [1, *ids[start + 1 : start + 16]]
            for position in range(8, 15):
                logits = llm.new_sequence().extend(window[: position + 1]).astype(np.float64)
                nll.append(np.log(np.exp(logits).sum()) - logits[window[position + 1]])
        assert estimate.num_scored == len(nll) == 14
        assert estimate.value == pytest.approx(math.exp(np.mean(nll)), rel=1e-5)
        error = np.std(nll) / math.sqrt(len(nll) - 1)
        assert estimate.standard_error == pytest.approx(estimate.value * error, rel=1e-4)

    def test_short_texts_are_an_error(self) -> None:
        with pytest.raises(PromptError, match="15 tokens, less than one window of 16"):
            count_windows(list(range(15)), 16)
        with pytest.raises(PromptError, match="at least 4"):
            count_windows(list(range(15)), 3)
        assert count_windows(list(range(33)), 16) == 2

    def test_one_scored_token_has_no_error_estimate(self) -> None:
        assert Perplexity().plus(np.array([1.0])).standard_error == 0.0

    def test_damaged_weights_are_named(self, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        llm = LLM(tiny, kernels="reference")
        head: object = llm.loaded.model.weights.output.matrix
        assert isinstance(head, ReferenceMatrix)
        head.values[:] = np.nan
        with pytest.raises(NumericsError, match="output head"):
            list(perplexity_windows(llm, list(range(3, 40)), 16))


class TestConversation:
    params = SamplingParams(seed=2, max_tokens=6)

    def make(self, tiny: Path, context_length: int = 128, **options: object) -> Conversation:
        llm = LLM(tiny, kernels="reference", context_length=context_length, reuse_prefix=True)
        return Conversation(llm, self.params, **options)  # type: ignore[arg-type]

    def test_remembers_what_was_said(self, tiny: Path) -> None:
        talk = self.make(tiny, system="be brief")
        first = "".join(talk.ask("hi"))
        "".join(talk.ask("and now"))
        assert [message["role"] for message in talk.messages] == ["user", "assistant"] * 2
        assert talk.messages[1]["content"] == first.strip()
        assert talk.last is not None
        talk.clear()
        assert talk.messages == []

    def test_turns_before_are_not_computed_again(self, tiny: Path) -> None:
        talk = self.make(tiny)
        list(talk.ask("tell me about the sea and the ships"))
        before = len(talk._encode())
        list(talk.ask("go on"))
        assert talk.last is not None
        assert 0 < talk.last.metrics.prefill_tokens < before

    def test_an_answer_that_is_stopped_is_kept(self, tiny: Path) -> None:
        talk = self.make(tiny)
        pieces = talk.ask("hi")
        shown = next(pieces)
        pieces.close()
        assert talk.messages[-1] == {"role": "assistant", "content": shown.strip()}

    def test_template_of_the_model_is_used(
        self, tiny: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[bot]"
        monkeypatch.setattr(Tokenizer, "chat_template", property(lambda _: template))
        talk = self.make(tiny, system="be brief")
        talk.messages.append({"role": "user", "content": "hi"})
        tokenizer = talk._llm.loaded.tokenizer
        assert tokenizer.decode(talk._encode()) == "[system]be brief[user]hi[bot]"

    def test_without_a_template_the_user_is_not_impersonated(self, tiny: Path) -> None:
        assert FALLBACK_STOP in self.make(tiny)._params.stop_strings

    def test_overlong_conversation_is_an_error_or_forgets(self, tiny: Path) -> None:
        talk = self.make(tiny, context_length=48, drops_old=False)
        list(talk.ask("first"))
        with pytest.raises(PromptError, match="context holds 48"):
            list(talk.ask("a longer message"))
        assert len(talk.messages) == 2
        forgetful = self.make(tiny, context_length=48)
        list(forgetful.ask("first"))
        list(forgetful.ask("a long message"))
        assert forgetful.num_dropped == 2
        assert [message["content"] for message in forgetful.messages[::2]] == [
            *("first", "a long message")
        ]
