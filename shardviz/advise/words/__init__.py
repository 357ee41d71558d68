"""Sentences about changes, searches, expectations, locks and problems."""
