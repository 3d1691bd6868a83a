"""The tables: columns, keys and what they mean."""
