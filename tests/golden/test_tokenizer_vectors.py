"""The test strings of llama.cpp's vocabularies, against the ids of the models' own tokenizers.

Expected ids lie beside the vocabularies in the data folder; those in `tokenizer/` (Falcon, MPT,
RoBERTa) are the files of the same names in llama.cpp's `models/`, ids only. MPT's is older
than three of the strings; it has GPT-NeoX's vocabulary, and RoBERTa has the one of OPT.

`tokenizer/models/` has the files of today's llama.cpp (commit 0c1e57098, MIT, see LICENSE there):
other strings, more vocabularies. The source package of llama-cpp-python has the vocabularies under
`vendor/llama.cpp/models`; a test is skipped where the data folder lacks the one it needs.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from powerinfer.tokenizer import Tokenizer
from tokenizer_metadata import (
    Metadata,
    gguf_metadata,
    llama3_metadata,
    qwen2_metadata,
    roberta_metadata,
    vector_ids,
    vector_strings,
)

STORED = Path(__file__).parent / "tokenizer"
MODELS = STORED / "models"
TODAYS = [path.name[11:-9] for path in sorted(MODELS.glob("ggml-vocab-*.gguf.out"))]


def _ggml(name: str, **changes: object) -> Callable[[Path], Metadata]:
    return lambda data: gguf_metadata(data / "vocab/ggml" / f"ggml-vocab-{name}.gguf", **changes)


def _powerinfer(name: str, **changes: object) -> Callable[[Path], Metadata]:
    return lambda data: gguf_metadata(
        data / "vocab/powerinfer" / f"ggml-vocab-{name}.gguf", **changes
    )


CASES: dict[str, tuple[Callable[[Path], Metadata], str]] = {
    "llama-spm": (_ggml("llama-spm"), "llama-spm"),
    "llama-spm of PowerInfer": (_powerinfer("llama"), "llama-spm"),
    "phi-3": (_ggml("phi-3"), "phi-3"),
    "gpt-2": (_ggml("gpt-2"), "gpt-2"),
    "deepseek-coder": (_ggml("deepseek-coder"), "deepseek-coder"),
    "llama-bpe": (llama3_metadata, "llama-bpe"),
    "qwen2": (qwen2_metadata, "qwen2"),
    "falcon of PowerInfer, no pre": (_powerinfer("falcon"), "falcon"),
    "falcon of PowerInfer, pre falcon": (_powerinfer("falcon", pre="falcon"), "falcon"),
    "gpt-neox, no pre": (_ggml("gpt-neox"), "mpt"),
    "mpt": (_ggml("gpt-neox", pre="mpt"), "mpt"),
    "roberta-bpe": (roberta_metadata, "roberta-bpe"),
}

# The same vocabularies in other files.
ELSEWHERE: dict[str, Callable[[Path], Metadata]] = {
    "falcon": _powerinfer("falcon", pre="falcon"),
    "llama-bpe": llama3_metadata,
    "mpt": _ggml("gpt-neox", pre="mpt"),
    "qwen2": qwen2_metadata,
}


# The two largest vocabularies run once in CI, each with other strings.
SLOW, THOROUGH = pytest.mark.slow, pytest.mark.thorough
MARKS = {"llama-bpe": SLOW, "qwen2": THOROUGH}
MARKS_OF_TODAY = {"llama-bpe": THOROUGH, "qwen2": SLOW, "gemma-4": SLOW}

# Strings of vocabularies with a file of their own.
COUNTS = {"qwen35": 51, "gemma-4": 46}


def _marked(names: Iterable[str], marks: Mapping[str, pytest.MarkDecorator]) -> list[Any]:
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


@pytest.mark.parametrize("case", _marked(CASES, MARKS))
def test_vectors(case: str, data_dir: Path) -> None:
    build, name = CASES[case]
    stored = STORED / f"{name}.out"
    beside = data_dir / "vocab" / "ggml" / f"ggml-vocab-{name}.gguf.out"
    expected = vector_ids(stored if stored.exists() else beside)
    tokenizer = Tokenizer.from_metadata(build(data_dir), source=case)
    strings = vector_strings(data_dir / "vocab" / "ggml" / "ggml-vocab-gpt-2.gguf.inp")
    assert len(strings) == 47
    # Some files end before the line of the last string, which is empty.
    expected += [[]] * (len(strings) - len(expected))
    _check(tokenizer, strings, expected)


@pytest.mark.parametrize("name", _marked(TODAYS, MARKS_OF_TODAY))
def test_vectors_of_todays_llama_cpp(name: str, data_dir: Path) -> None:
    path = data_dir / "vocab" / "ggml" / f"ggml-vocab-{name}.gguf"
    if not path.exists() and name not in ELSEWHERE:
        pytest.skip(f"the development data lacks {path}")
    metadata = gguf_metadata(path) if path.exists() else ELSEWHERE[name](data_dir)
    own = MODELS / f"ggml-vocab-{name}.gguf.inp"
    strings = vector_strings(own if own.exists() else MODELS / "ggml-vocab-gpt-2.gguf.inp")
    assert len(strings) == COUNTS.get(name, 47)
    expected = vector_ids(MODELS / f"ggml-vocab-{name}.gguf.out")[: len(strings)]
    _check(Tokenizer.from_metadata(metadata, source=name), strings, expected)


def _check(tokenizer: Tokenizer, strings: list[str], expected: list[list[int] | None]) -> None:
    for text, ids in zip(strings, expected, strict=True):
        found = tokenizer.encode(text, add_bos=False)
        assert ids is None or found == ids, repr(text)
        assert tokenizer.decode(found) == text
        assert tokenizer.decode_bytes(tokenizer.encode(text.encode())) == text.encode()
