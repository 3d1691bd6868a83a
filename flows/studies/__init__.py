"""Studies over years of history: backtests, rankings, and the published experiments."""
