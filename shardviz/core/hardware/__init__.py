"""Chips and their published figures, topologies, and the links between devices. Pure."""
