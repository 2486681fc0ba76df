"""Durable state: blob stores, the head of a job, checkpoint records."""
