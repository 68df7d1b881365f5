"""The pages of `docs/cli`: what `--help` prints, at a fixed width."""

import click

from powerinfer.cli.main import HelpContext, main
from powerinfer.cli.parts import parts_of

__all__ = ["reference_pages"]

WIDTH = 96


def reference_pages() -> dict[str, str]:
    """File name to Markdown: `README.md` for the program, `<command>.md` for each command."""
    root = HelpContext(
        main, info_name="powerinfer", terminal_width=WIDTH, help_option_names=["-h", "--help"]
    )
    names = [each for name in main.list_commands(root) for each in _with_parts(root, name)]
    index = "".join(f"- [{name}]({_file(name)})\n" for name in names)
    pages = {"README.md": _page("powerinfer", main.get_help(root)) + f"\n{index}"}
    for name in names:
        command = main.get_command(root, name)
        if command is not None:
            context = HelpContext(command, info_name=name, parent=root)
            pages[_file(name)] = _page(f"powerinfer {name}", command.get_help(context))
    return pages


def _with_parts(root: click.Context, name: str) -> list[str]:
    command = main.get_command(root, name)
    return [name, *(f"{name} {part}" for part in parts_of(command))] if command else [name]


def _file(name: str) -> str:
    return f"{name.replace(' ', '-')}.md"


def _page(title: str, help_text: str) -> str:
    return f"# {title}\n\n```text\n{help_text.rstrip()}\n```\n"
