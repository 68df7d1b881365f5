"""Layouts of `powerinfer pack`: one file each, named like the value of `--layout`."""
