"""Search for the best translation, position by position."""
