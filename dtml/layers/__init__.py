"""The parts of networks: their common interface, and layers that draw random numbers."""
