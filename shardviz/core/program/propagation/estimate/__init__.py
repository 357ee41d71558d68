"""The estimate: what Shardy would insert, and where that is known to differ."""
