"""Makes what the pages show: plots in docs/images, and the lines and tables that quote results.

scripts/make-pages             the plots and the quoted figures; needs the extra `plot`
scripts/make-pages --check     change nothing; fail if a file does not show the results
scripts/make-pages --terminal [--plan-model FILE]
                               also the pictures of a terminal: `run` on the embedded model, and
                               `plan` on FILE, for instance one that this makes:
python benchmarks/planted.py --shape relullama-7b --layers 8 --format q4_0 -o synthetic-7b-8L.gguf

docs/images/idea.svg is drawn by hand.
"""

import argparse
import sys
import tempfile
from pathlib import Path

# The modules of tables register their parts.
from figures import (  # noqa: F401
    drafts,
    models,
    quality,
    real_models,
    serving,
    sparsified,
    sparsify,
    speed,
    states,
)
from figures.parts import fill
from figures.pictures import PICTURES
from figures.terminal import draw_terminal

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
PAGES = (
    "README.md",
    "docs/drafts.md",
    "docs/models/README.md",
    "docs/real-models.md",
    "docs/serving/speed.md",
    "docs/sparsify/experiment.md",
    "docs/sparsify/quality.md",
    "docs/sparsify/real-model.md",
    "docs/speed.md",
)


def check() -> None:
    """Compare pages and plots with the results."""
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in PAGES}
    stale = [name for name, text in texts.items() if fill(text) != text]
    for name, picture in PICTURES.items():
        if not picture().is_shown_by((IMAGES / name).read_text(encoding="utf-8")):
            stale.append(f"docs/images/{name}")
    if stale:
        sys.exit(f"error: run scripts/make-pages: {', '.join(stale)}")


def draw_terminals(plan_model: Path | None) -> None:
    """Draw what the commands print on this machine now; without a model no `plan`."""
    run = ["run", "-p", "Once upon a time", "-n", "90", "--seed", "7"]
    with tempfile.TemporaryDirectory() as folder:
        _write(IMAGES / "run.svg", draw_terminal(run, Path(folder)))
        if plan_model is not None:
            (Path(folder) / plan_model.name).symlink_to(plan_model.resolve())
            plan = ["plan", "-m", plan_model.name, "--vram-budget", "1.6"]
            _write(IMAGES / "plan.svg", draw_terminal(plan, Path(folder), columns=100))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    print(path.relative_to(ROOT))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--terminal", action="store_true")
    parser.add_argument("--plan-model", type=Path)
    options = parser.parse_args()
    if options.check:
        check()
        return
    for name in PAGES:
        _write(ROOT / name, fill((ROOT / name).read_text(encoding="utf-8")))
    for name, picture in PICTURES.items():
        _write(IMAGES / name, picture().svg())
    if options.terminal:
        draw_terminals(options.plan_model)


if __name__ == "__main__":
    main()
