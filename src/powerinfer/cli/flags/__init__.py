"""Flags of commands: made from options, shared by commands, or known from other programs."""
