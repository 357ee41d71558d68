"""Plans: the shardings that Shardy propagates to every value of a program."""
