"""The Explorer's panels of changes and problems."""
