"""Speed and quality, measured: each file prints figures that the README.md beside it quotes."""
