"""Rule tables, their decisions, and audits of whole models."""
