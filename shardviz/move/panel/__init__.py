"""The Explorer's player for collectives."""
