"""Speed and quality, measured: each file prints the figures that the README quotes."""
