"""Building blocks for pictures, and the painter for matplotlib."""
