"""The numpy backend: the oracle that defines the right answer."""
