"""The commands of `powerinfer`, named after their files; each exports `COMMAND: click.Command`.

The first line of a module's docstring is its line in `powerinfer --help`; the file is parsed for
it, not imported. Heavy imports belong inside the command function.
"""
