"""Rule tables, what they decide, and audits of whole models."""
