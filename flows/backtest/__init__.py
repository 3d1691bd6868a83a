"""Backtests: folds trained one by one or on workers, then stored, scored and
followed by portfolios.
"""
