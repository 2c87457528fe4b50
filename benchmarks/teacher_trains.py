"""Whether a teacher's signal trains: one planner, continued by GRPO, by the rule, and by a teacher that reads the plan.

The world, the planner, its supervised start and the settings of the reinforcement are those of `stepgrpo demo`. A planner of
this size cannot read a reference plan, so a teacher is made first: the same planner, supervised further on the same kind of
imperfect demonstrations in the teacher's own contexts, in one half of which the demonstration is the reference. It learns to
copy what it reads and nothing else that the planner does not know: without a reference it makes the demonstrations' mistakes.

Prints how well the teacher copies, how well its signals tell right steps from wrong ones, and a table of the held-out success
before and after, greedy and sampled, as mean ± standard deviation over seeds. All runs begin with the same checkpoint; a seed
is one set of prompts and one stream of sampling, the same in each arm, so that the first rollouts are the same.

Run from the project's folder with `python -m benchmarks.teacher_trains --out DIR`.
"""

import argparse
import json
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import datasets
import transformers
from transformers import Qwen2ForCausalLM

from stepgrpo.audit.run import audit, usable_plans, works_in_household
from stepgrpo.data.household import ACTIONS, household_rows, plan_json
from stepgrpo.data.sources import success_check
from stepgrpo.demo.imperfect import imperfect_plan
from stepgrpo.demo.reinforce import reinforce
from stepgrpo.demo.settings import FAST, PlannerSize, Rollouts, Settings
from stepgrpo.demo.tokenizer import train_tokenizer
from stepgrpo.demo.warmstart import build_planner, demonstrations, supervised_start
from stepgrpo.evaluation import evaluate
from stepgrpo.frozen.callback import TeacherLogpCallback
from stepgrpo.frozen.context import TeacherContexts
from stepgrpo.generation import generate_plans
from stepgrpo.modeling import load_tokenizer
from stepgrpo.report.tables import markdown_table
from stepgrpo.segment.plan import PlanStep
from stepgrpo.signal.forward_proxy import ForwardProxySignal
from stepgrpo.signal.rule import GROUND_TRUTH_FIELDS

TEACHER = "the teacher's directory"
PROXY = {"step_reward_kind": "forward_proxy"}
ARMS = {
    "GRPO": {"step_advantage_w": 0.0},
    "rule": {},
    "contrast": {**PROXY, "step_squash": "contrast", "step_teacher_path": TEACHER},
    "margin": {**PROXY, "step_squash": "margin", "step_teacher_path": TEACHER},
    "contrast, self": {**PROXY, "step_squash": "contrast", "step_teacher_path": "self"},
}
METRICS = ("sampled/success", "greedy/success", "sampled/step_accuracy", "sampled/valid_json")
SIGNALS = ("contrast/mean/both", "contrast/min/both", "prob/min/both", "margin/mean/both", "margin/min/both")


def steps_of(plan):
    return [PlanStep(step["action_id"], step["action_name"]) for step in plan]


def make_start(folder, settings):
    """The demo's supervised start."""
    rows = household_rows("train", settings.examples, seed=settings.seed)
    texts = [text for row in rows[:4000] for text in (row["prompt"][0]["content"], plan_json(row["gt_action_close"]))]
    tokenizer = train_tokenizer([*texts, *[plan_json(ACTIONS)] * 20])
    model = build_planner(tokenizer, replace(PlannerSize(), positions=1024), settings.seed)
    examples = demonstrations(rows, settings.rate, settings.seed)
    supervised_start(model, tokenizer, examples, str(folder / "trainer"), 1, settings.seed)
    save(model, tokenizer, folder)


def make_teacher(folder, start, args):
    """The planner, taught to read a reference."""
    tokenizer = load_tokenizer(start)
    model = Qwen2ForCausalLM.from_pretrained(start)
    contexts = TeacherContexts(tokenizer)
    rng = random.Random(args.settings.seed)
    examples = []
    for row in household_rows("train", args.teacher_examples, seed=args.settings.seed + 1):
        plan = imperfect_plan(row["gt_action_close"], row["scene"], args.teacher_rate, rng)
        reads = rng.random() < 0.5
        context = contexts.with_reference(row, steps_of(plan)) if reads else contexts.alone(row)
        answer = [{"role": "assistant", "content": plan_json(plan)}]
        examples.append({"prompt": context.prompt, "completion": answer})
    supervised_start(model, tokenizer, examples, str(folder / "trainer"), 1, args.settings.seed)
    save(model, tokenizer, folder)


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.rmtree(folder / "trainer", ignore_errors=True)


def judge_teacher(folder, args):
    """How often the teacher copies a plan with mistakes, and what its signals say of damaged ground truths."""
    tokenizer, model = load_tokenizer(folder), Qwen2ForCausalLM.from_pretrained(folder)
    contexts = TeacherContexts(tokenizer)
    rows = household_rows("dev", args.audit_rows, seed=args.settings.seed)
    rng = random.Random(args.settings.seed)
    plans = [imperfect_plan(row["gt_action_close"], row["scene"], args.settings.rate, rng) for row in rows]
    shown = [contexts.with_reference(row, steps_of(plan)).prompt for row, plan in zip(rows, plans, strict=True)]
    written = generate_plans(model, tokenizer, shown, args.settings.rollouts.max_tokens, temperature=0.0)
    copied = mean(text == [plan_json(plan)] for text, plan in zip(written, plans, strict=True))
    usable, truths = usable_plans(rows, GROUND_TRUTH_FIELDS)
    signal = ForwardProxySignal(TeacherLogpCallback(model, tokenizer), contexts, GROUND_TRUTH_FIELDS)
    summary = audit(usable, truths, tokenizer, signal.token_logps, works=works_in_household, draws=0)
    shown = {name: summary["signals"][name] for name in SIGNALS}
    return {"copied": copied, "cases": summary["cases"], "signals": shown}


def run(arm, seed, start, teacher, args):
    """One reinforcement; its metrics on the test prompts, the rollouts' success by update, and the seconds of an update."""
    settings = args.settings
    fields = {name: str(teacher) if value == TEACHER else value for name, value in ARMS[arm].items()}
    count = settings.rollouts.updates * settings.rollouts.prompts
    prompts = household_rows("train", count, seed=seed + 1000)
    model, tokenizer = Qwen2ForCausalLM.from_pretrained(start), load_tokenizer(start)
    clocks = time.perf_counter(), time.process_time()
    curve = reinforce(
        "StepGRPO",
        model,
        tokenizer,
        prompts,
        settings.rollouts,
        str(args.out / "trainer"),
        seed=seed,
        learning_rate=settings.learning_rates[1],
        **fields,
    )
    spent = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
    wall, cpu = (seconds / settings.rollouts.updates for seconds in spent)
    result = {"arm": arm, "seed": seed, "wall_s": wall, "cpu_s": cpu, "curve": curve}
    return {**result, "metrics": judge(model, tokenizer, args)}


def judge(model, tokenizer, args):
    settings = args.settings
    return evaluate(
        model,
        tokenizer,
        household_rows("test", settings.test_prompts, seed=settings.seed),
        settings.rollouts.max_tokens,
        samples=settings.samples,
        batch_size=100,
        seed=settings.seed,
        succeeded=success_check("household"),
    )


def spread(values, scale=100):
    text = f"{scale * mean(values):.1f}"
    return f"{text} ± {scale * stdev(values):.1f}" if len(values) > 1 else text


def tables(results):
    """The report in Markdown."""
    teacher, runs = results["teacher"], results["runs"]
    head = ["signal", "AUROC", "AUROC swap", "wrong > 0", "right < 0"]
    rows = []
    for name, found in teacher["signals"].items():
        shares = [f"{100 * found[key]:.1f}%" for key in ("wrong_rewarded", "right_punished")]
        rows.append([name, f"{found['auroc']['all']:.3f}", f"{found['auroc']['swap']:.3f}", *shares])
    said = [f"The teacher copies {100 * teacher['copied']:.1f}% of unseen plans with mistakes, word for word.\n"]
    said += [f"{teacher['cases']} damaged ground truths of held-out rows:\n", markdown_table(head, rows), ""]
    head = ["arm", "seeds", *(f"{' '.join(name.split('/'))} %" for name in METRICS)]
    head += ["first 10 updates %", "last 10 updates %", "s an update", "CPU s an update"]
    rows = [["before", "-", *(spread([results["before"][name]]) for name in METRICS), "-", "-", "-", "-"]]
    for arm in dict.fromkeys(one["arm"] for one in runs):
        mine = [one for one in runs if one["arm"] == arm]
        row = [arm, len(mine), *(spread([one["metrics"][name] for one in mine]) for name in METRICS)]
        row += [spread([mean(one["curve"][part]) for one in mine]) for part in (slice(10), slice(-10, None))]
        rows.append(row + [f"{mean(one[clock] for one in mine):.2f}" for clock in ("wall_s", "cpu_s")])
    return "\n".join([*said, markdown_table(head, rows)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--out", type=Path, required=True, help="for start/, teacher/ and results.json; the two models are made once")
    add("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    add("--seeds", type=int, default=3)
    add("--teacher-examples", type=int, default=12800)
    add("--teacher-rate", type=float, default=0.2, help="how often a step of what the teacher learns from is wrong")
    add("--audit-rows", type=int, default=100)
    add("--quick", action="store_true", help="a look at every part; learns nothing")
    args = parser.parse_args()
    args.settings = Settings()
    if args.quick:
        rollouts = Rollouts(updates=1, prompts=2, completions=4, max_tokens=48)
        args.settings = replace(FAST, examples=32, rollouts=rollouts, test_prompts=4)
        args.seeds, args.teacher_examples, args.audit_rows = 1, 32, 2
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    start, teacher, started = args.out / "start", args.out / "teacher", time.perf_counter()
    if not (start / "config.json").is_file():
        make_start(start, args.settings)
    if not (teacher / "config.json").is_file():
        make_teacher(teacher, start, args)
    results = {"teacher": judge_teacher(teacher, args), "runs": []}
    results["before"] = judge(Qwen2ForCausalLM.from_pretrained(start), load_tokenizer(start), args)
    for seed in range(args.seeds):
        for arm in args.arms:
            results["runs"].append(run(arm, seed, start, teacher, args))
            results["seconds"] = round(time.perf_counter() - started)
            (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(args.out / "trainer", ignore_errors=True)
    print(f"\n{tables(results)}\n\n{results['seconds']} s")


if __name__ == "__main__":
    main()
