"""What the step term costs: alignment against decode and re-encode, and the whole term against a forward pass.

Run with `make bench`. Prints ratios measured side by side in this run; the milliseconds belong to this machine.
"""

import argparse
import json
import random
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from stepgrpo.credit import spread_on_tokens, step_advantages
from stepgrpo.data.household import household_rows, plan_json
from stepgrpo.demo.tokenizer import train_tokenizer
from stepgrpo.segment.align import token_spans
from stepgrpo.segment.segmenter import plan_rollout
from stepgrpo.signal import score_rollouts
from stepgrpo.signal.rule import RuleSignal


def best_of(function, repeats=5):
    """Seconds of the fastest of several runs, and what the last returned."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        best = min(best, time.perf_counter() - start)
    return best, result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--completions", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)

    rows = household_rows("train", args.completions, args.seed)
    tokenizer = train_tokenizer([plan_json(row["gt_action_close"]) for row in rows], vocab_size=512)
    plans = [row["gt_action_close"][:: -1 if i % 2 else 1] for i, row in enumerate(rows)]  # every second one is wrong
    texts = [plan_json(plan) for plan in plans]
    texts = [json.dumps({"language_plan": "First look around. " * 12, **json.loads(text)}) for text in texts]
    ids = [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in texts]
    width = max(map(len, ids))
    keep = [[True] * len(row) + [False] * (width - len(row)) for row in ids]
    padded = [row + [tokenizer.pad_token_id] * (width - len(row)) for row in ids]

    def reencode():
        for row in ids:
            text = tokenizer.decode(row)
            tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)

    def align():
        for row in ids:
            token_spans(row, tokenizer)

    signal = RuleSignal()

    def step_term():
        eos = {tokenizer.eos_token_id}
        fields = ("action_id", "action_name")
        rollouts = [
            plan_rollout(row, kept, tokenizer, eos, data, 0.0, fields, "executable_plan")
            for row, kept, data in zip(padded, keep, rows, strict=True)
        ]
        scores = score_rollouts(signal, rollouts)
        steps = max(map(len, scores))
        table = torch.full((len(rows), steps), torch.nan)
        for i, row in enumerate(scores):
            table[i, : len(row)] = torch.tensor(row)
        advantages = step_advantages(table, torch.arange(len(rows)) // 8, baseline="position")
        return spread_on_tokens(advantages, [rollout.step_tokens for rollout in rollouts], width)

    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
        )
    )
    batch = torch.tensor(padded[:8])

    def forward():
        with torch.inference_mode():
            model(batch, logits_to_keep=1)

    old, _ = best_of(reencode)
    new, _ = best_of(align)
    term, result = best_of(step_term)
    whole, _ = best_of(forward, repeats=2)
    whole *= len(rows) / len(batch)
    tokens = sum(map(len, ids))
    print(f"{len(rows)} completions, {tokens} tokens, {int((result != 0).sum())} of them credited")
    print(f"alignment:  {new / tokens * 1e6:6.2f} µs a token, {old / new:.1f}x as fast as decode and re-encode")
    print(f"step term:  {term * 1e3:6.1f} ms, {term / whole:.2%} of one forward pass of a 106M-parameter model")


if __name__ == "__main__":
    main()
