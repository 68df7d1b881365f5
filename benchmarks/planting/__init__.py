"""Synthetic models whose FFN neurons fire as a trained model's do: what `planted.py` is made of."""
