"""Counts how often each neuron of a model fires, over any amount of text."""
