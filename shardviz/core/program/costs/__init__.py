"""The least time of every part of a program, from published figures."""
