"""Order the stocks of a day: which will do better than the others, whatever the market does."""
