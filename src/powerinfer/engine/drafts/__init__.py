"""Drafts: guesses of next tokens that a decode step checks as further rows, which changes no bit.

A row of a step has the bits that it has alone. So a drafted token is accepted exactly if the text's
own sampler, with its own random numbers, draws it from the row before: the text is the one without
drafts, whatever was guessed.
"""
