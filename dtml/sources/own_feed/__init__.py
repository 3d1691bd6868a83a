"""A feed of a user's own: a source of bars from a Python file or an installed package.

It runs in its own process (`source`, `work`), and a check admits it (`admission`).
"""
