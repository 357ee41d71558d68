"""What compiled text says: collectives, replica groups, source lines. Pure; knows no
jax.
"""
