"""Files for the original PowerInfer: its tensors, formats and predictors."""
