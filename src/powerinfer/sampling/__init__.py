"""From logits to the next token: filters, penalties, grammars, log probabilities, stop strings."""
