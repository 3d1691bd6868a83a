"""Past nights and single predictions made again from what the store kept of them."""
