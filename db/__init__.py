"""Rows: tables, engine, every write, every read, the SQL views."""
