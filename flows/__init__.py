"""The conductor: the `dtml` command, its Prefect flows, and what they share."""
