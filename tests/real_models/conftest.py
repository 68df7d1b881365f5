"""The file of the real model, and the golden file."""

import hashlib
import os
from pathlib import Path

import pytest

from real_models import FILE, Golden, read_golden


@pytest.fixture(scope="session")
def golden() -> Golden:
    return read_golden()


@pytest.fixture(scope="session")
def smollm2(golden: Golden) -> Path:
    """SmolLM2-135M-Instruct in Q4_1; skips where it is absent."""
    path = Path(os.environ.get("POWERINFER_REAL_MODELS", "/nowhere")) / FILE
    if not path.is_file():
        pytest.skip(f"POWERINFER_REAL_MODELS has no {FILE}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    assert found == golden["sha256"], f"{path} is another file; run scripts/real-models"
    return path
