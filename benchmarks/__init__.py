"""Speed and quality, measured: each file prints the figures that README.md here quotes."""
