"""Queries and writes that need more than `db.read` and `db.save`: one module for each subject.

Writes run inside the caller's `transaction`, and a rerun with the same values adds no row. The
dashboard reads only the documented views, so that a role that may read only them can serve it.
"""
