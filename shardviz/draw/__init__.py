"""The toolkit that pictures are made with, and the painter for matplotlib."""
