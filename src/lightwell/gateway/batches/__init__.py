"""Files and batches: many requests in a file, answered when there is room, each exactly once."""
