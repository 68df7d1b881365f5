"""An importance matrix brings a quantized model nearer to the one it was made from.

Measured as the mean Kullback-Leibler divergence of its next-token distributions from those of the
F16 model, on other text than the importance was measured on.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from command_line import invoke, run_json
from powerinfer import LLM, SamplingParams
from powerinfer.store.default_model import default_model_path

_START = "Once upon a time"
_NUM_STORIES = 12
_FOR_IMPORTANCE = 6
FloatArray = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def stories() -> list[str]:
    """Texts that the embedded model was trained for: its own."""
    with LLM() as llm:
        params = [SamplingParams(seed=seed, max_tokens=200) for seed in range(_NUM_STORIES)]
        return [_START + story.text for story in llm.generate([_START] * _NUM_STORIES, params)]


@pytest.fixture(scope="module")
def importance(tmp_path_factory: pytest.TempPathFactory, stories: list[str]) -> Path:
    """Measured on some of the stories."""
    folder = tmp_path_factory.mktemp("importance")
    (folder / "stories.txt").write_text("\n".join(stories[:_FOR_IMPORTANCE]))
    path = folder / "model.imatrix.gguf"
    run_json("imatrix", "-f", folder / "stories.txt", "-o", path, "-c", "128")
    return path


@pytest.fixture(scope="module")
def expected(stories: list[str]) -> FloatArray:
    """What the F16 model predicts on the others: f64[tokens, vocab_size]."""
    return log_probabilities(default_model_path(), stories)


def log_probabilities(path: Path, stories: list[str]) -> FloatArray:
    """Of every token after each token of the stories that importance was not measured on."""
    with LLM(path, sparsity="exact") as llm:
        logits = np.concatenate([llm.logits(story) for story in stories[_FOR_IMPORTANCE:]])
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logs: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs


@pytest.mark.slow
@pytest.mark.parametrize(
    "file_type",
    [
        "Q4_0",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("Q4_1", "Q4_K_S")),
        "Q4_K_M",
    ],
)
def test_importance_lowers_the_divergence(
    tmp_path: Path, file_type: str, stories: list[str], importance: Path, expected: FloatArray
) -> None:
    divergences = []
    for flags in ((), ("--imatrix", importance)):
        path = tmp_path / f"{len(flags)}.gguf"
        result = invoke("quantize", default_model_path(), path, file_type, *flags)
        assert result.exit_code == 0, result.output
        found = log_probabilities(path, stories)
        each = (np.exp(expected) * (expected - found)).sum(axis=1)
        divergences.append(float(each.mean()))
    plain, weighted = divergences
    assert 0 < weighted < plain
    assert plain < 0.05
