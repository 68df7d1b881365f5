"""Placing a loaded model on a GPU: measurements, choice of a plan, storage of plans."""
