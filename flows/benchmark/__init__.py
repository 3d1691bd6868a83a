"""The published experiment: trained and chosen, then the test span read once."""
