"""Prefect: the flows, their schedules and deployments, the server, and alerts of nights."""
