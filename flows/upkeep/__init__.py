"""Looking after a machine and its store: examine, back up, restore, export."""
