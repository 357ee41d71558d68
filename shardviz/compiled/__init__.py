"""Compiled programs: their collectives, memory, least times and stages."""
