"""What XLA makes of a program: collectives, memory, times and stages."""
