"""Placing a loaded model on a GPU: what is measured, which plan is chosen, where it is kept."""
