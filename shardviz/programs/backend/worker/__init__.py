"""Worker processes, which compile and run so that nothing can end the kernel."""
