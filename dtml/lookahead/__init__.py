"""The look-ahead audit, the pipeline that it runs, and the leaks that it must catch."""
