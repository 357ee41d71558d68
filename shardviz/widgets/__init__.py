"""The live side: the Explorer and what it is made of. The only rooms that import anywidget."""
