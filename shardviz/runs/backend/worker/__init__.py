"""Compiles and runs in a child process, so that a crash cannot end the kernel."""
