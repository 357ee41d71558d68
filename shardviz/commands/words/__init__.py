"""Sentences of the command line: its help, and the report of the doctor."""
