"""Chips with their published figures, topologies, links and targets."""
