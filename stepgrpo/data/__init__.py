"""Training rows from data sets and from the built-in household."""
