"""Whether the picture matters: one small vision-language model, trained with pictures and without, where only they tell.

The thing that an instruction asks for lies behind one of four closed doors. The text does not say which one; the picture does.
Both runs start from the same random weights and see the same rows in the same order: supervised first, then StepGRPO. The four
places stand in any order in a picture, and the orders of the test pictures are in none of the training pictures. Every door is
right in a quarter of the rows, so a planner that sees nothing is right in a quarter of them, whatever it prefers.

Run from the project's folder with `python -m benchmarks.picture_matters`.
"""

import argparse
import itertools
import json
import random
import tempfile
import time

from PIL import Image as Pictures
from PIL import ImageDraw
from transformers import set_seed
from trl import SFTConfig, SFTTrainer

from stepgrpo import StepGRPOConfig, StepGRPOTrainer
from stepgrpo.data.dataset import to_dataset
from stepgrpo.data.household import ground_truth_plan, plan_json, simulate
from stepgrpo.evaluation import evaluate
from stepgrpo.modeling import load_model, load_processing_class
from stepgrpo.rewards.household import household_reward
from tests.vlm import build_vlm

DOORS = ("Cabinet", "Drawer", "Fridge", "Microwave")
TARGETS = ("CounterTop", "DiningTable")
LOOKS = {"Cabinet": "sienna", "Drawer": "purple", "Fridge": "lightgray", "Microwave": "teal"}
COLOURS = {"Apple": "red", "Bread": "saddlebrown", "Egg": "white", "Lettuce": "lime", "Mug": "blue", "Potato": "gold"}
SIDE = 32  # pixels: four tokens, one for each place (see the limit of tests/vlm.py)
ORDERS = random.Random(0).sample(list(itertools.permutations(DOORS)), 24)
SPLITS = {"train": ORDERS[:18], "test": ORDERS[18:]}
TOKENS = 140  # a right plan has about 120


def draw(order, place, thing):
    """The four places, each a square of its own colour; in the middle of one the thing, of the others a hole."""
    image = Pictures.new("RGB", (SIDE, SIDE))
    pen, half, edge = ImageDraw.Draw(image), SIDE // 2, SIDE // 8
    for number, door in enumerate(order):
        left, top = half * (number % 2), half * (number // 2)
        inside = COLOURS[thing] if door == place else "black"
        pen.rectangle((left, top, left + half - 1, top + half - 1), fill=LOOKS[door])
        pen.rectangle((left + edge, top + edge, left + half - edge - 1, top + half - edge - 1), fill=inside)
    return image


def make_rows(n, split, seed):
    """Rows whose thing is behind a door, every door as often."""
    rng = random.Random(f"{split} {seed}")
    rows = []
    for number in range(n):
        door, target, thing = DOORS[number % len(DOORS)], rng.choice(TARGETS), rng.choice(list(COLOURS))
        places = {place: [thing] if place == door else [] for place in (*DOORS, *TARGETS)}
        goal = {"type": "pick_and_place_simple", "object": thing, "target": target, "carrier": None, "sliced": False}
        scene = {"room": "kitchen", "places": places, "open": [], "goal": goal}
        text = f"Put the {thing} on the {target}. It is in one of: {', '.join(DOORS)}."
        plan = ground_truth_plan(scene)
        rows.append(
            {
                "prompt": [{"role": "user", "content": text}],
                "completion": [{"role": "assistant", "content": plan_json(plan)}],
                "gt_action_close": plan,
                "scene": json.dumps(scene),
                "images": [draw(rng.choice(SPLITS[split]), door, thing)],
            }
        )
    return rows


def only(rows, pictures, *columns):
    """Some columns of the rows, and the pictures or not."""
    return [{name: row[name] for name in (*columns, *["images"] * pictures)} for row in rows]


def common(args):
    return {
        "output_dir": args.scratch,
        "seed": args.seed,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_steps": 20,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "adam_beta2": 0.98,
    }


def supervised(model, processor, rows, pictures, args):
    config = SFTConfig(
        **common(args),
        max_steps=args.sft_steps,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=20,
        max_length=None,
    )
    data = to_dataset(only(rows, pictures, "prompt", "completion"))
    SFTTrainer(model, config, train_dataset=data, processing_class=processor).train()


def reinforce(model, processor, rows, pictures, args):
    config = StepGRPOConfig(
        **common(args),
        max_steps=args.rl_steps,
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=TOKENS,
        learning_rate=args.rl_rate,
        lr_scheduler_type="constant",
        step_match_mode="first_error",
        step_baseline="position",  # without pictures most doors are wrong: uncentred, all would be pushed down
    )
    data = to_dataset(only(rows, pictures, "prompt", "gt_action_close", "scene"))
    StepGRPOTrainer(model, household_reward, config, data, processing_class=processor).train()


def measure(model, processor, rows, pictures, args):
    """Success, share of right plans and of right steps, greedy and sampled."""
    rows = only(rows, pictures, "prompt", "gt_action_close", "scene")
    solved = lambda row, steps: simulate(row["scene"], steps).success  # noqa: E731
    return evaluate(model, processor, rows, TOKENS, samples=1, succeeded=solved, seed=args.seed)


def run(pictures, folder, args):
    """Trains and measures after each stage."""
    train, test = make_rows(args.rows, "train", args.seed), make_rows(args.test_rows, "test", args.seed)
    model = load_model(folder)
    processor = load_processing_class(folder, padding_side="left")
    set_seed(args.seed)
    supervised(model, processor, train, pictures, args)
    stages = {"supervised": measure(model, processor, test, pictures, args)}
    reinforce(model, processor, train, pictures, args)
    stages["StepGRPO"] = measure(model, processor, test, pictures, args)
    return stages


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--test-rows", type=int, default=200)
    parser.add_argument("--sft-steps", type=int, default=140)
    parser.add_argument("--rl-steps", type=int, default=120)
    parser.add_argument("--rl-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        args.scratch = f"{scratch}/run"
        texts = [m["content"] for row in make_rows(64, "train", 0) for m in (*row["prompt"], *row["completion"])]
        folder = build_vlm("qwen2_5_vl", f"{scratch}/model", texts, hidden=64, seed=args.seed, spread=0.06)
        results = {name: run(name == "with", folder, args) for name in ("with", "without")}
    names = ("success", "exact_match", "step_accuracy")
    print(f"\nOn {args.test_rows} held-out rows, greedy and sampled (chance for the door: {1 / len(DOORS):.0%}):\n")
    print(
        f"{'pictures':<10}{'after':<12}"
        + "".join(f"{way + ' ' + name:>24}" for way in ("greedy", "sampled") for name in names)
    )
    for kind, stages in results.items():
        for stage, metrics in stages.items():
            values = [metrics[f"{way}/{name}"] for way in ("greedy", "sampled") for name in names]
            print(f"{kind:<10}{stage:<12}" + "".join(f"{value:>24.1%}" for value in values))
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
