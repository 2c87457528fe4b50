"""Real data, a real model, two CPU cores: SmolLM2-135M on ALFRED, by a LoRA warm start and then step-level GRPO.

python recipes/alfred_smollm2.py --alfred DIR [--out DIR]

Measures the model on held-out tasks before, between and after, and writes OUT/metrics.json after each. The settings
are those of configs/alfred_smollm2_lora_sft.yaml and configs/alfred_smollm2_lora.yaml.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
WHERE = """No ALFRED data. The ALFRED project's page, https://askforalfred.com, leads to it: the download without images is
called json_2.1.0. Unpack it and give its folder by --alfred (make real ALFRED=DIR)."""


def main(argv: list[str] | None = None) -> int:
    """Runs the recipe; returns the exit status: 0, or 2 without data or the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alfred", default="", help="a folder of ALFRED trajectories")
    parser.add_argument("--out", type=Path, default=Path("outputs/alfred_smollm2"))
    parser.add_argument("--eval-n", type=int, default=24, help="held-out instructions")
    parser.add_argument("--sft-steps", type=int, help="instead of the config's")
    parser.add_argument("--rl-steps", type=int, help="instead of the config's")
    parser.add_argument("--rl-options", default="", help="more options for both kinds of GRPO, as one string")
    parser.add_argument("--compare", action="store_true", help="also train plain GRPO from the same warm start")
    args = parser.parse_args(argv)
    if not args.alfred or not Path(args.alfred).exists():
        print(WHERE, file=sys.stderr)
        return 2

    from stepgrpo.data.sources import read_rows
    from stepgrpo.evaluation import evaluate, format_metrics
    from stepgrpo.modeling import SMOLLM2, load_model, load_tokenizer
    from stepgrpo.training import train_sft, train_step_grpo

    data = f"alfred-names:{args.alfred}"
    sft = _arguments("alfred_smollm2_lora_sft.yaml", data, args.out / "sft", args.sft_steps)
    more = shlex.split(args.rl_options)
    rl = _arguments("alfred_smollm2_lora.yaml", data, args.out / "step_grpo", args.rl_steps, more)
    plain = _arguments(
        "alfred_smollm2_lora.yaml", data, args.out / "grpo", args.rl_steps, [*more, "--step_advantage_w", "0"]
    )
    rows, report = read_rows(data, "dev", args.eval_n, max_plan_steps=sft[0].max_plan_steps)
    print(f"Held out: {report}", flush=True)

    seconds: dict[str, float] = {}
    table: dict[str, dict[str, float]] = {}
    completions: dict[str, list[dict[str, Any]]] = {}
    clock = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds[stage] = round(now - clock, 1)
        clock = now
        print(f"{stage}: {seconds[stage]:.0f} s", flush=True)

    def judge(label: str, model: Any) -> None:
        completions[label] = []
        limit = rl[1].max_completion_length
        table[label] = evaluate(model, tokenizer, rows, limit, samples=1, batch_size=24, record=completions[label])
        lap(f"evaluation: {label}")
        # After every stage: what is measured so far is kept if the rest is stopped.
        results = {"rows": len(rows), "data": str(report), "table": table, "seconds": seconds}
        results["examples"] = {name: items[:3] for name, items in completions.items()}
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "metrics.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"\n{format_metrics(table)}\n", flush=True)

    tokenizer = load_tokenizer(SMOLLM2)
    model = load_model(SMOLLM2, dtype=sft[2].dtype)
    lap("loading")
    judge("before", model)
    model = train_sft(*sft, model=model).model
    lap("warm start")
    judge("warm start", model)
    del model
    for label, arguments in {"step-level GRPO": rl, **({"GRPO": plain} if args.compare else {})}.items():
        arguments[2].model_name_or_path = str(args.out / "sft")
        model = train_step_grpo(*arguments).model
        lap(label)
        judge(label, model)

    print(
        f"\nOn {len(rows)} held-out instructions, one greedy and one sampled plan each:\n\n{format_metrics(table)}\n"
    )
    print(f"{sum(seconds.values()):.0f} s in all. In {args.out}: metrics.json, the LoRA adapters")
    return 0


def _arguments(
    config: str, data: str, out: Path, steps: int | None, options: Sequence[str] = ()
) -> tuple[Any, Any, Any]:
    from trl import ModelConfig, SFTConfig, TrlParser

    from stepgrpo import StepGRPOConfig
    from stepgrpo.recipe import RecipeArguments

    kind = SFTConfig if "sft" in config else StepGRPOConfig
    given = ["--config", str(CONFIGS / config), "--data", data, "--output_dir", str(out)]
    if steps is not None:
        given += ["--max_steps", str(steps)]
    return TrlParser((RecipeArguments, kind, ModelConfig)).parse_args_and_config([*given, *options])


if __name__ == "__main__":
    raise SystemExit(main())
