"""Files as the original PowerInfer reads them: its tensors, formats and predictors."""
