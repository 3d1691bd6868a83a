"""Bars and the sessions they belong to, the moves between sessions, and histories that a source restated."""
