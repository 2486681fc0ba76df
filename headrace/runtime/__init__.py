"""The epoch engine, checkpoints, executors."""
