"""The sentences of the Explorer."""
