"""The small dReLU model in the package: texts, vocabulary, training, export and model card."""
