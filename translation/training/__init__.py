"""Fit a translation network, on one process or several; a killed one resumes."""
