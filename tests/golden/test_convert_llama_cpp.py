"""Plain files that convert writes: llama.cpp's stored logits, of the very same bytes."""

import hashlib
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from backends import BACKENDS, using
from converted_llama_cpp import NAMES, POSITIONS, QUANTIZED, token_ids, write_converted
from llama_cpp_cases import FOLDER
from powerinfer.gguf import open_gguf
from powerinfer.models import load_model
from tolerances import assert_close


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_converted(folder, name) for name in NAMES}


@pytest.fixture(scope="module")
def goldens() -> dict[str, npt.NDArray[np.float32]]:
    with np.load(FOLDER / "converted.npz") as file:
        return dict(file)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_the_one_that_llama_cpp_ran(name: str, files: dict[str, Path]) -> None:
    hashes = json.loads((FOLDER / "converted.json").read_text())["sha256_of_model"]
    assert hashlib.sha256(files[name].read_bytes()).hexdigest() == hashes[name]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_llama_cpp(
    name: str, backend: str, files: dict[str, Path], goldens: dict[str, npt.NDArray[np.float32]]
) -> None:
    with using(backend) as ops:
        model = load_model(open_gguf(files[name]), ops)
        cache = model.new_cache(64)
        batch = cache.batch([(0, token_ids(name), 0)], [True])
        got = model.forward(batch, cache, logits_for=np.array(POSITIONS, np.int32))
    row = "f32" if name not in QUANTIZED else f"blocks of {256 if '_K' in name else 32}"
    assert_close(got, goldens[name], f"llama.cpp {row}")
