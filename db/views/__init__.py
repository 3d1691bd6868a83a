"""The documented SQL views."""
