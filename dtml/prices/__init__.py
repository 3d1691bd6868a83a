"""Bars and the sessions they belong to, the returns between sessions, and
histories that a source restated.
"""
