"""Makes what the pages show: pictures in docs/images, and the lines and tables that quote results.

scripts/make-pages             the drawing, the chart and the quoted figures
scripts/make-pages --check     change nothing; fail where a file is not what this would make
scripts/make-pages --terminal [--plan-model FILE]
                               also the pictures of a terminal: `run` on the embedded model, and
                               `plan` on FILE, for instance one that this makes:
python benchmarks/planted.py --shape relullama-7b --layers 8 --format q4_0 -o synthetic-7b-8L.gguf
"""

import argparse
import sys
import tempfile
from pathlib import Path

from figures.chart import draw_chart
from figures.idea import draw_idea
from figures.measured import load_measured
from figures.quoted import fill
from figures.sparsify import draw_budgets
from figures.terminal import TerminalPicture

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
PAGES = (
    "README.md",
    "docs/models/README.md",
    "docs/serving/speed.md",
    "docs/sparsify/experiment.md",
    "docs/sparsify/quality.md",
    "docs/speed.md",
)
RUN = ["run", "-p", "Once upon a time", "-n", "90", "--seed", "7"]
PLAN_BUDGET = "1.6"


def made_from_results() -> dict[Path, str]:
    """Every file that follows from the results and this code, and what it should contain."""
    measured = load_measured(ROOT / "benchmarks" / "results")
    files = {
        IMAGES / "idea.svg": draw_idea(),
        IMAGES / "decode-speed.svg": draw_chart(measured),
        IMAGES / "sparsify-budgets.svg": draw_budgets(),
    }
    for name in PAGES:
        page = ROOT / name
        files[page] = fill(page.read_text(encoding="utf-8"), measured)
    return files


def terminal_pictures(plan_model: Path | None) -> dict[Path, str]:
    """What the commands print on this machine now.

    Args:
        plan_model: what `plan` is shown with; None leaves its picture as it is.
    """
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        picture = TerminalPicture("run")
        picture.run(RUN, Path(folder))
        files[IMAGES / "run.svg"] = str(picture)
        if plan_model is not None:
            (Path(folder) / plan_model.name).symlink_to(plan_model.resolve())
            picture = TerminalPicture("plan", columns=100)
            picture.run(["plan", "-m", plan_model.name, "--vram-budget", PLAN_BUDGET], Path(folder))
            files[IMAGES / "plan.svg"] = str(picture)
    return files


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--terminal", action="store_true")
    parser.add_argument("--plan-model", type=Path)
    options = parser.parse_args()
    files = made_from_results()
    if options.check:
        stale = [
            str(path.relative_to(ROOT))
            for path, wanted in files.items()
            if not path.exists() or path.read_text(encoding="utf-8") != wanted
        ]
        if stale:
            sys.exit(f"error: run scripts/make-pages: {', '.join(stale)}")
        return
    if options.terminal:
        files |= terminal_pictures(options.plan_model)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
