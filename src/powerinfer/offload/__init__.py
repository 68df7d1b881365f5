"""Placing a loaded model on a GPU: measuring, choosing a plan, storing it."""
