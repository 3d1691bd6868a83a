"""Bars, the sessions they belong to, and histories that a source restated."""
