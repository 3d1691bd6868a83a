"""What networks are made of: their common interface, the LSTM over windows, random numbers."""
