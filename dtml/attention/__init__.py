"""Whether attention explains anything, and what the test found in words."""
