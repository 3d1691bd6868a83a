"""Translate text: corpora, networks, training and search.

DTML shares the Transformer, and what reads files of tensors and of definitions.
"""
