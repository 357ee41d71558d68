"""Sentences of this feature, in English."""
