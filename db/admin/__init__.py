"""Looking after a store: copies, checks, roles."""
