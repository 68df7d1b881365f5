"""Writes docs/cli from what the commands print for `--help`. Run through scripts/make-cli-docs."""

from pathlib import Path

from powerinfer.cli.reference_pages import reference_pages

FOLDER = Path("docs/cli")


def main() -> None:
    """Replace the pages: those of commands that no longer exist are deleted."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    pages = reference_pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"{FOLDER}: {len(pages)} pages")


if __name__ == "__main__":
    main()
