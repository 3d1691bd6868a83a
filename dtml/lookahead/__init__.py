"""The look-ahead audit, the pipeline it runs and the leaks it must catch."""
