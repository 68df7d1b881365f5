"""Scores, logits and embeddings of given texts."""
