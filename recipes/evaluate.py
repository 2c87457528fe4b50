"""Held-out metrics of a model or an adapter; the same as `stepgrpo evaluate`.

accelerate launch [--config_file accelerate_configs/X.yaml] recipes/evaluate.py --model DIR --data SPEC --out DIR
"""

from stepgrpo.evaluation import main

if __name__ == "__main__":
    raise SystemExit(main())
