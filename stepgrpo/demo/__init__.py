"""The demo: a small planner trained from scratch, then improved by GRPO and by step-level GRPO."""
