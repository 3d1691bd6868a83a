"""The parts of networks: their common interface, the LSTM over windows, random numbers."""
