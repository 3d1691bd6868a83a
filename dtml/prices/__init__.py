"""Bars and their sessions, returns between sessions, and histories that a source restated."""
