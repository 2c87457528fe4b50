"""Held-out metrics of a model or an adapter; the same as `stepgrpo evaluate`.

accelerate launch [--config_file accelerate_configs/X.yaml] recipes/evaluate.py --config configs/Y.yaml [--option value ...]
"""

from stepgrpo.evaluation_command import run

if __name__ == "__main__":
    raise SystemExit(run())
