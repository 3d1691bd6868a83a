"""A night: fetch, check, train, predict, score, report; plain functions without Prefect."""
