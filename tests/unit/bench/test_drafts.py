"""`bench --draft`: the answers are those without drafts, and the figures are theirs."""

from collections.abc import Iterator
from itertools import count

import pytest

from command_line import assert_error, invoke, run_json
from powerinfer import LLM
from powerinfer.bench.drafts import (
    DraftPlan,
    DraftTask,
    ImperfectDrafter,
    measure_drafts,
    read_draft_tasks,
)
from powerinfer.errors import PowerInferError
from powerinfer.sampling.sampler import Sampler

TASKS = (DraftTask("code", "copy", "one two three"), DraftTask("prose", "tell", "a story"))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1, context_length=128) as loaded:
        yield loaded


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 1.0])
def test_drafts_are_as_often_right_as_wanted(acceptance: float) -> None:
    text = list(range(100))
    drafter = ImperfectDrafter(text, acceptance, vocab_size=100)
    drafts = [drafter.propose(text[:start], 1).token_ids for start in range(1, 100)]
    num_right = sum(draft == (start,) for start, draft in enumerate(drafts, 1))
    assert num_right == pytest.approx(99 * acceptance, abs=15 * (acceptance == 0.5))
    assert drafter.propose(text, 7).token_ids == ()


def test_figures_of_known_answers(llm: LLM) -> None:
    done: list[tuple[int, int]] = []
    plan = DraftPlan("auto", acceptance=1.0, num_tokens=24, repeats=2)
    result = measure_drafts(llm, plan, lambda *progress: done.append(progress), TASKS)
    report = result.report(llm)
    assert done == [(number, 10) for number in range(1, 11)]
    assert [task["task"] for task in report["tasks"]] == ["copy", "tell"]
    assert list(report["ratios"]) == ["code", "prose"]
    for task, samples in zip(report["tasks"], result.tasks, strict=True):
        assert task["tokens"] == 24
        assert len(samples.plain) == len(samples.drafted) == 2
        assert task["ratio_min"] <= task["ratio"] <= task["ratio_max"]
        assert task["draft_accepted_share"] in (None, 1.0)
        assert 1.0 <= task["tokens_per_step"] <= 8.0


def test_another_answer_is_an_error(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = count(300)
    monkeypatch.setattr(Sampler, "sample", lambda *_: next(tokens))
    with pytest.raises(PowerInferError, match="'copy' got another answer"):
        measure_drafts(llm, DraftPlan("auto", num_tokens=4, repeats=1), tasks=TASKS)


def test_tasks_of_the_package() -> None:
    tasks = read_draft_tasks()
    assert {task.kind for task in tasks} == {"rewriting", "code", "json", "prose"}
    assert len({task.name for task in tasks}) == len(tasks)


def test_table_and_json_of_the_command() -> None:
    common = ("bench", "--draft", "--decode", "2", "--repeats", "1", "--context", "512")
    report = run_json(*common)
    assert len(report["tasks"]) == len(read_draft_tasks())
    result = invoke(*common[:1], "--draft", "ngram:4", *common[2:])
    assert result.exit_code == 0
    assert "All answers were the same with and without drafts." in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--draft", "off"), "nothing to measure"),
        (("--draft", "tree"), "must be auto, off, ngram"),
        (("--draft-acceptance", "0.5"), "give --draft too"),
        (("--draft-model", "small.gguf"), "give --draft too"),
        (("--draft", "--draft-acceptance", "1.5"), "is not in the range"),
        (("--draft", "--draft-acceptance", "nan"), "is not in the range"),
        (("--draft", "--kernels", "reference"), "there are no drafts on a GPU or with reference"),
        (("--draft", "--quality"), "give one of them"),
        (("--draft", "--settings", "off"), "--settings is for --quality"),
    ],
)
def test_what_says_nothing_is_refused(arguments: tuple[str, ...], message: str) -> None:
    assert_error(invoke("bench", *arguments), message)
