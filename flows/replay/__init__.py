"""Past nights and single predictions, reproduced from the rows of the store."""
