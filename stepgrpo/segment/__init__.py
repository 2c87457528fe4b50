"""Where the steps are: plan text to steps with positions, and characters to tokens. Imports no torch."""
