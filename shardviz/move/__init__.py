"""Data movement: resharding, checkpoint restores, input batches, collective steps."""
