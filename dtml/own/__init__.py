"""A user's own features and model: a Python file that an audit admits, run in its own process."""
