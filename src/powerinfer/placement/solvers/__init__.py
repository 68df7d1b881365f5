"""Placement solvers, one file each; the file name is the solver's name (`--solver`)."""
