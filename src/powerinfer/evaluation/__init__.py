"""Accuracy on tasks by lm-eval, whose model is our engine; needs the extra `eval`."""
