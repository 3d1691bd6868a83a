"""Translate text: corpora, networks, training and search.

DTML shares `translation.transformer` and `translation.definitions` alone.
"""
