"""`stepgrpo doctor`: names the problems of an installation, a machine and a run's config before the GPUs are taken."""
