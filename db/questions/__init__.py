"""Twenty questions to a history of predictions, each one SQL statement."""
