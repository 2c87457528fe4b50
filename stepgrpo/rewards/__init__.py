"""Reward functions for `reward_funcs` of a TRL trainer."""
