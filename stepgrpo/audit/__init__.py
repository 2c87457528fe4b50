"""The audit of a teacher: ground-truth plans, damaged in known ways, scored by every signal."""
