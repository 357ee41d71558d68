"""Worker processes, which compile and run, so that a crash spares the kernel."""
