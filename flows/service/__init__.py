"""Prefect: the flows, their schedules and deployments, the server, and who is told of a night."""
