"""The pages of `docs/cli`: what `--help` prints, at a fixed width."""

from powerinfer.cli.help_text import HelpContext
from powerinfer.cli.main import main

__all__ = ["reference_pages"]

WIDTH = 96


def reference_pages() -> dict[str, str]:
    """File name to Markdown: `README.md` for the program, `<command>.md` for each command."""
    root = HelpContext(
        main, info_name="powerinfer", terminal_width=WIDTH, help_option_names=["-h", "--help"]
    )
    names = main.list_commands(root)
    index = "".join(f"- [{name}]({name}.md)\n" for name in names)
    pages = {"README.md": _page("powerinfer", main.get_help(root)) + f"\n{index}"}
    for name in names:
        command = main.get_command(root, name)
        if command is not None:
            context = HelpContext(command, info_name=name, parent=root)
            pages[f"{name}.md"] = _page(f"powerinfer {name}", command.get_help(context))
    return pages


def _page(title: str, help_text: str) -> str:
    return f"# {title}\n\n```text\n{help_text.rstrip()}\n```\n"
