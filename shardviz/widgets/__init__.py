"""The Explorer and its parts: the only modules that import anywidget."""
