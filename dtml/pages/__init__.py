"""The HTML pages of a night, a backtest and a benchmark."""
