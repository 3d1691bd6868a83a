"""Measure speed and quality: each file prints figures that the README.md beside it quotes."""
