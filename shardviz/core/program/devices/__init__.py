"""Devices: attached, simulated, or only described."""
