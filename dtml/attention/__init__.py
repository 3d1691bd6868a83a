"""The test of attention as an explanation, and its findings in words."""
