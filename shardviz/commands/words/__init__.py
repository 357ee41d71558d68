"""Text of the command line: its help, and the `doctor` report."""
