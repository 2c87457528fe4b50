"""Frozen models that score what the policy wrote: loaded once, shared, on the trainer's own processes."""
