"""Walking forward: folds, portfolios that follow predictions, their performance."""
