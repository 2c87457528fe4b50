"""Whether the picture matters: one small vision-language model, trained with pictures and without, where only they tell.

The thing that an instruction asks for lies behind one of four closed doors. The text does not say which one; the picture does.
Both runs start from the same weights and see the same rows in the same order: supervised first, then StepGRPO.

Run from the project's folder with `python -m benchmarks.picture_matters`.
"""

import argparse
import json
import random
import tempfile
import time

from datasets import Dataset, Features, Image, List
from PIL import Image as Pictures
from PIL import ImageDraw
from transformers import set_seed
from trl import SFTConfig, SFTTrainer

from stepgrpo import StepGRPOConfig, StepGRPOTrainer
from stepgrpo.data.household import ground_truth_plan, plan_json, simulate
from stepgrpo.evaluation import evaluate
from stepgrpo.modeling import load_model, load_processing_class
from stepgrpo.rewards.household import household_reward
from tests.vlm import FAMILIES, build_vlm

DOORS = ("Cabinet", "Drawer", "Fridge", "Microwave")
TARGETS = ("CounterTop", "DiningTable")
LOOKS = {"Cabinet": "sienna", "Drawer": "purple", "Fridge": "lightgray", "Microwave": "teal"}
COLOURS = {"Apple": "red", "Bread": "saddlebrown", "Egg": "white", "Lettuce": "lime", "Mug": "blue", "Potato": "gold"}
SIDE = 160


def draw(place, thing, rng):
    """The four places in any order, each a square of its own colour; in the middle of one the thing, of the others a hole."""
    image = Pictures.new("RGB", (SIDE, SIDE))
    pen, half = ImageDraw.Draw(image), SIDE // 2
    for number, door in enumerate(rng.sample(DOORS, len(DOORS))):
        left, top = half * (number % 2), half * (number // 2)
        inside = COLOURS[thing] if door == place else "black"
        pen.rectangle((left, top, left + half - 1, top + half - 1), fill=LOOKS[door])
        pen.rectangle((left + 20, top + 20, left + half - 21, top + half - 21), fill=inside)
    return image


def make_rows(n, seed):
    """Rows whose thing is behind a door; `door` is its name."""
    rng = random.Random(seed)
    rows = []
    for number in range(n):
        door, target, thing = rng.choice(DOORS), rng.choice(TARGETS), rng.choice(list(COLOURS))
        places = {place: [thing] if place == door else [] for place in (*DOORS, *TARGETS)}
        goal = {"type": "pick_and_place_simple", "object": thing, "target": target, "carrier": None, "sliced": False}
        scene = {"room": "kitchen", "places": places, "open": [], "goal": goal}
        text = f"Put the {thing} on the {target}. It is in one of: {', '.join(DOORS)}."
        plan = ground_truth_plan(scene)
        rows.append(
            {
                "id": f"{seed}-{number}",
                "prompt": [{"role": "user", "content": text}],
                "completion": [{"role": "assistant", "content": plan_json(plan)}],
                "gt_action_close": plan,
                "scene": json.dumps(scene),
                "task_type": door,
                "images": [draw(door, thing, rng)],
            }
        )
    return rows


def data_set(rows, columns, pictures):
    """Some columns of the rows as a data set, with the pictures or without."""
    data = Dataset.from_list([{name: row[name] for name in columns} for row in rows])
    if not pictures:
        return data
    images = [row["images"] for row in rows]
    return Dataset.from_dict(
        {**data.to_dict(), "images": images}, features=Features({**data.features, "images": List(Image())})
    )


def common(args, seed):
    return {
        "output_dir": args.scratch,
        "seed": seed,
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
        **common(args, args.seed),
        max_steps=args.sft_steps,
        per_device_train_batch_size=args.sft_batch,
        learning_rate=args.sft_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=20,
        max_length=None,
    )
    data = data_set(rows, ("prompt", "completion"), pictures)
    SFTTrainer(model, config, train_dataset=data, processing_class=processor).train()


def reinforce(model, processor, rows, pictures, args):
    config = StepGRPOConfig(
        **common(args, args.seed),
        max_steps=args.rl_steps,
        per_device_train_batch_size=args.prompts * args.generations,
        num_generations=args.generations,
        max_completion_length=args.tokens,
        learning_rate=args.rl_rate,
        lr_scheduler_type="constant",
        step_match_mode="first_error",
    )
    data = data_set(rows, ("prompt", "gt_action_close", "scene"), pictures)
    StepGRPOTrainer(model, household_reward, config, data, processing_class=processor).train()


def measure(model, processor, rows, pictures, args):
    """Success, share of right plans and of right steps, greedy and sampled."""
    rows = rows if pictures else [{name: row[name] for name in row if name != "images"} for row in rows]
    solved = lambda row, steps: simulate(row["scene"], steps).success  # noqa: E731
    return evaluate(model, processor, rows, args.tokens, samples=args.samples, succeeded=solved, seed=args.seed)


def run(pictures, folder, args):
    """Trains and measures after each stage."""
    train, test = make_rows(args.rows, args.seed), make_rows(args.test_rows, args.seed + 1)
    model = load_model(folder)
    processor = load_processing_class(folder, padding_side="left")
    set_seed(args.seed)
    supervised(model, processor, train, pictures, args)
    stages = {"supervised": measure(model, processor, test, pictures, args)}
    if args.rl_steps:
        reinforce(model, processor, train, pictures, args)
        stages["StepGRPO"] = measure(model, processor, test, pictures, args)
    return stages


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--family", choices=FAMILIES, default="qwen2_5_vl")
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--test-rows", type=int, default=96)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--spread", type=float, default=0.06)
    parser.add_argument("--sft-steps", type=int, default=120)
    parser.add_argument("--sft-batch", type=int, default=16)
    parser.add_argument("--sft-rate", type=float, default=3e-3)
    parser.add_argument("--rl-steps", type=int, default=40)
    parser.add_argument("--rl-rate", type=float, default=3e-4)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=140)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        args.scratch = f"{scratch}/run"
        texts = [m["content"] for row in make_rows(64, 99) for m in (*row["prompt"], *row["completion"])]
        folder = build_vlm(
            args.family, f"{scratch}/model", texts, args.hidden, args.layers, seed=args.seed, spread=args.spread
        )
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
