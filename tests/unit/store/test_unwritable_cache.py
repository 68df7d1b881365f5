"""What is computed is printed, also where nothing can be stored."""

from pathlib import Path

import pytest

from command_line import assert_error, invoke, run_json

pytestmark = pytest.mark.usefixtures("without_gpu")


@pytest.mark.slow
@pytest.mark.measured
def test_a_plan_that_cannot_be_stored_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine whose home folder is read-only, for the model in the package."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    options = ("plan", "--vram-budget", "1")
    shown = invoke(*options)
    assert shown.exit_code == 0, shown.output
    assert "predicted decode speed" in shown.stdout
    assert "stored in" not in shown.stdout
    assert shown.stderr.count("warning: the plan was not stored: ") == 1
    assert "cannot write: Not a directory" in shown.stderr
    assert run_json(*options)["paths"] == []
    # What is asked for by name is an error.
    assert_error(invoke(*options, "--write-gpu-index"), "cannot write")
    below = tmp_path / "file" / "below"
    assert_error(invoke(*options, "-o", below), "cannot write there")
