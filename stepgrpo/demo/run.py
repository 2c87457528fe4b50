"""`stepgrpo demo`: a planner from scratch, then GRPO and step-level GRPO from the same checkpoint, side by side."""

from __future__ import annotations

import argparse
import json
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stepgrpo.demo.settings import FAST, KINDS, PlannerSize, Settings, step_settings


def run_demo(settings: Settings, out: Path, size: PlannerSize | None = None) -> dict[str, Any]:
    """Runs the demo and writes `results.json`, `curve.png`, `heatmap.png` and `models/{start,grpo,stepgrpo}`.

    Args:
        settings: what to do.
        out: the directory to write to; made if it is not there.
        size: of the planner; the default one if None.

    Returns:
        What `results.json` holds: `settings`, `rows` (a metric table per model), `curves`, `seconds`.
    """
    from transformers import Qwen2ForCausalLM

    from stepgrpo.data.household import ACTIONS, household_rows, plan_json
    from stepgrpo.data.sources import success_check
    from stepgrpo.demo.credit_picture import pick_and_draw
    from stepgrpo.demo.reinforce import reinforce
    from stepgrpo.demo.tokenizer import train_tokenizer
    from stepgrpo.demo.warmstart import build_planner, demonstrations, supervised_start
    from stepgrpo.evaluation import evaluate
    from stepgrpo.generation import generate_ids
    from stepgrpo.report.curve import draw_curves

    out.mkdir(parents=True, exist_ok=True)
    scratch = str(out / "trainer_output")
    seconds: dict[str, float] = {}
    started = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal started
        seconds[stage] = round(time.perf_counter() - started, 1)
        started = time.perf_counter()

    seed = settings.seed
    rows = household_rows("train", settings.examples, seed=seed)
    texts = [text for row in rows[:4000] for text in (row["prompt"][0]["content"], plan_json(row["gt_action_close"]))]
    tokenizer = train_tokenizer([*texts, *[plan_json(ACTIONS)] * 20])  # seldom written actions get whole tokens too
    model = build_planner(tokenizer, size or PlannerSize(), seed)
    print(f"Planner: {model.num_parameters():,} weights, from scratch, on {len(rows)} demonstrations.")
    print(f"Each step of a demonstration is wrong with probability {settings.rate}.")
    supervised_start(model, tokenizer, demonstrations(rows, settings.rate, seed), scratch, 1, seed)
    start = out / "models" / "start"
    model.save_pretrained(start)
    tokenizer.save_pretrained(start)
    lap("supervised start")

    test = household_rows("test", settings.test_prompts, seed=seed)
    tokens = settings.rollouts.max_tokens

    def judge(planner: Qwen2ForCausalLM) -> dict[str, float]:
        return evaluate(
            planner,
            tokenizer,
            test,
            tokens,
            samples=settings.samples,
            batch_size=100,
            seed=seed,
            succeeded=success_check("household"),
        )

    table = {"before": judge(model)}
    shown = test[:40]
    written = generate_ids(model, tokenizer, [row["prompt"] for row in shown], tokens, seed=seed)
    pick_and_draw([group[0] for group in written], shown, tokenizer, out / "heatmap.png")
    lap("evaluation")

    prompts = household_rows("train", settings.rollouts.updates * settings.rollouts.prompts, seed=seed + 1000)
    curves: dict[str, list[float]] = {}
    for kind, learning_rate in zip(KINDS, settings.learning_rates, strict=True):
        started = time.perf_counter()
        planner = Qwen2ForCausalLM.from_pretrained(start)
        curves[kind] = reinforce(
            kind, planner, tokenizer, prompts, settings.rollouts, scratch, seed=seed, learning_rate=learning_rate
        )
        lap(kind)
        table[kind] = judge(planner)
        target = out / "models" / kind.lower()
        planner.save_pretrained(target)
        tokenizer.save_pretrained(target)
        seconds["evaluation"] = round(seconds["evaluation"] + time.perf_counter() - started, 1)

    each = settings.rollouts.prompts * settings.rollouts.completions
    draw_curves(
        curves,
        out / "curve.png",
        xlabel=f"update (each {each} rollouts)",
        ylabel="share of rollouts that reach the goal",
        title="Household plans, sampled during training",
        window=10,
    )
    results = {
        "settings": {**asdict(settings), "step": step_settings()},
        "rows": table,
        "curves": curves,
        "seconds": {**seconds, "total": round(sum(seconds.values()), 1)},
    }
    shutil.rmtree(scratch, ignore_errors=True)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return results


METRICS = (
    "sampled/success",
    "greedy/success",
    "sampled/exact_match",
    "sampled/step_accuracy",
    "sampled/valid_json",
)


def format_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """The metric table as text, one line per model, shares in percent."""
    heads = [" ".join(reversed(name.replace("_", " ").split("/"))) for name in METRICS]
    lines = [" " * 10 + "  ".join(heads)]
    for label, metrics in rows.items():
        cells = [f"{100 * metrics[name]:.1f}%".rjust(len(head)) for name, head in zip(METRICS, heads, strict=True)]
        lines.append(label.ljust(10) + "  ".join(cells))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="stepgrpo demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="directory for what it writes")
    parser.add_argument("--fast", action="store_true", help="a look at every part in under two minutes; learns little")
    parser.add_argument(
        "--rate", type=float, help="how often a demonstrated step is wrong; 0 shows if the task is known"
    )
    parser.add_argument("--updates", type=int, help="weight updates of each of the two trainers")
    parser.add_argument("--seed", type=int, default=0, help="of the data, the weights and the sampling")
    args = parser.parse_args(argv)

    import datasets
    import transformers

    # transformers 5 warns about its own old names, which TRL still uses.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    settings = replace(FAST if args.fast else Settings(), seed=args.seed)
    if args.rate is not None:
        settings = replace(settings, rate=args.rate)
    if args.updates is not None:
        settings = replace(settings, rollouts=replace(settings.rollouts, updates=args.updates))
    results = run_demo(settings, args.out)
    print(f"\nOn {settings.test_prompts} held-out prompts (sampled: {settings.samples} completions of each):\n")
    print(format_table(results["rows"]))
    if args.fast:
        print("\n--fast only shows that every part works: its supervised start is too short to make a planner.")
    print(f"\n{results['seconds']['total']:.0f} s. In {args.out}: results.json, curve.png, heatmap.png, models/")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
