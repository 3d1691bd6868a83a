"""The ranking of each day's stocks, walked through history: what `dtml ranking` runs."""
