"""Writes docs/cli from what the commands print for `--help`. Run through scripts/make-cli-docs."""

from pathlib import Path

from powerinfer.cli.main import HelpContext, command_names
from powerinfer.cli.main import main as program

FOLDER = Path("docs/cli")
WIDTH = 96


def reference_pages() -> dict[str, str]:
    """File name to Markdown: `README.md` for the program, `<command>.md` for each command."""
    root = HelpContext(
        program, info_name="powerinfer", terminal_width=WIDTH, help_option_names=["-h", "--help"]
    )
    names = command_names()
    index = "".join(f"- [{name}]({_file(name)})\n" for name in names)
    pages = {"README.md": _page("powerinfer", program.get_help(root)) + f"\n{index}"}
    for name in names:
        command = program.get_command(root, name)
        if command is not None:
            context = HelpContext(command, info_name=name, parent=root)
            pages[_file(name)] = _page(f"powerinfer {name}", command.get_help(context))
    return pages


def _file(name: str) -> str:
    return f"{name.replace(' ', '-')}.md"


def _page(title: str, help_text: str) -> str:
    return f"# {title}\n\n```text\n{help_text.rstrip()}\n```\n"


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
