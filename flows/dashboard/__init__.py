"""The prediction history as pages to browse."""
