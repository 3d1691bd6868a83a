"""A user's own features and model: one Python file, admitted by an audit, run
in a process of its own.
"""
