"""Compiling and running a program."""
