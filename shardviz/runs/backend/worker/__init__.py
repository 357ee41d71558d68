"""Compiles and runs in a child process, so that no compile can end the kernel."""
