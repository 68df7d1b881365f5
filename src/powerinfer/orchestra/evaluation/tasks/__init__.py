"""Kinds of tasks; a file's name is the kind's."""
