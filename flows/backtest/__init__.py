"""Backtests: folds are trained one by one or on workers, then scored and traded by portfolios."""
