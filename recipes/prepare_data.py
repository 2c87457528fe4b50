"""Converts a data set to JSON lines of training rows; the same as `stepgrpo prepare`.

python recipes/prepare_data.py --source embodiedbench:FILE --split train --out rows.jsonl
"""

from stepgrpo.data.convert import main

if __name__ == "__main__":
    raise SystemExit(main())
