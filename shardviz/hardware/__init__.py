"""Chips and their published figures, topologies, links and targets."""
