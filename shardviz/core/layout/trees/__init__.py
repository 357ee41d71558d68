"""Whole models: audits, and what libraries keep beside an array."""
