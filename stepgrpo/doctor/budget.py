"""A run's memory on one GPU, phase by phase, against what the GPU has."""

from __future__ import annotations

from typing import Any

from stepgrpo.doctor.activations import frozen_lines, policy_lines
from stepgrpo.doctor.devices import GB, Machine
from stepgrpo.doctor.findings import Report
from stepgrpo.doctor.memory import (
    ALWAYS,
    BYTES_4BIT,
    BYTES_4BIT_NESTED,
    BYTES_8BIT,
    PHASES,
    Line,
    Setup,
    peaks,
)
from stepgrpo.doctor.models import frozen_shape
from stepgrpo.doctor.parsing import Run
from stepgrpo.doctor.rewards import uses_judge
from stepgrpo.doctor.shape import Shape, dtype_bytes

_TIGHT = 0.9  # of the memory: what is worked out is rough
_HALF = ("bfloat16", "float16")
# Numbers that an optimizer keeps for each weight; those that are not here: two, as Adam's.
_MOMENTS = {"sgd": 0, "adafactor": 0, "lion": 1, "adagrad": 1, "rmsprop": 1}


def check_memory(report: Report, run: Run, machine: Machine, gpu_memory: float | None) -> None:
    """Adds the table of memory, and whether the most that is in use at a time is there.

    Args:
        report: where to.
        run: with its shape and the lengths of its prompts; without them the finding says what is missing.
        machine: this one.
        gpu_memory: bytes of the GPU that the run is meant for; where it is not given, this machine's.
    """
    if run.shape is None:
        report.warn("memory", "not worked out: the model's sizes are not known", "see model")
        return
    if run.adapter_failed:
        report.warn("memory", "not worked out: what is trained is not known", "see adapter")
        return
    available, whose = _available(run, machine, gpu_memory)
    setup = setup_of(run, available)
    lines = policy_lines(run.shape, setup)
    if uses_judge(run) and run.recipe.verify_model_path:
        lines += _judge_lines(report, run, setup)
    report.table(table(lines))
    found = peaks(lines)
    phase = max(found, key=lambda name: found[name])
    said = f"{found[phase] / GB:.1f} GB at most ({phase})"
    if available is None:
        report.ok("memory", f"{said}; this machine has no GPU to compare with", "--gpu_memory GB compares")
        return
    said += f" of {available / GB:.0f} GB {whose}"
    if found[phase] > available:
        report.fail("memory", said, _advice(run, phase))
    elif found[phase] > _TIGHT * available:
        report.warn("memory", f"{said}: tight, as the numbers are rough", _advice(run, phase))
    elif run.longest_prompt is None:
        report.warn("memory", f"{said}, without prompts: their tokens are not known", "see data and tokens")
    else:
        report.ok("memory", said)


def setup_of(run: Run, gpu_memory: float | None) -> Setup:
    """How the run's arguments have its model trained.

    Args:
        run: with its shape.
        gpu_memory: bytes of a GPU, which vLLM takes a share of; None where it is not known.
    """
    args, launch, shape = run.args, run.launch, run.shape
    half = args.bf16 or args.fp16 or (launch.mixed_precision in ("bf16", "fp16"))
    stored = _stored_dtype(run)
    weight = 2 if launch.spread.startswith("zero") and half else dtype_bytes(stored)
    moments, moment_bytes = _optimizer(args)
    grpo = run.name == "step_grpo"
    vllm = grpo and args.use_vllm
    return Setup(
        weight_bytes=weight,
        quantized_bytes=_quantized(run.model_args),
        trained_bytes=_trained_bytes(run, weight, half),
        compute_bytes=2 if half or stored in _HALF else 4,
        spread=launch.spread,
        processes=launch.processes,
        moments=moments,
        moment_bytes=moment_bytes,
        rows=args.per_device_train_batch_size,
        generated=args.generation_batch_size // launch.processes if grpo and not vllm else 0,
        prompt=run.longest_prompt or 0,
        completion=args.max_completion_length if grpo else run.longest_answer or 0,
        scores_prompt=not grpo,
        picture_tokens=run.longest_pictures,
        checkpointing=bool(args.gradient_checkpointing),
        eager_attention=run.model_args.attn_implementation == "eager",
        chunked_logits=chunked_logits(run),
        autocast=half,
        vllm=args.vllm_gpu_memory_utilization * (gpu_memory or 0.0) if vllm and args.vllm_mode == "colocate" else None,
        vllm_sleeps=vllm and args.vllm_enable_sleep_mode,
        gathers_to_generate=bool(getattr(args, "ds3_gather_for_generation", False)),
        # With adapters, the model without them is the reference.
        reference=grpo and args.beta != 0 and not shape.adapter,
        offload_optimizer=launch.offload_optimizer,
        offload_params=launch.offload_params,
        on_cpu=launch.cpu,
    )


def chunked_logits(run: Run) -> bool:
    """Whether the installed TRL works out log-probabilities in tiles, without logits of the whole batch."""
    from trl.trainer import utils

    if hasattr(utils, "add_fused_lm_head"):
        # Label smoothing needs all logits.
        return run.name == "step_grpo" or not run.args.label_smoothing_factor
    return run.args.use_liger_kernel or (run.name == "sft" and run.args.loss_type == "chunked_nll")


def table(lines: list[Line]) -> str:
    """The lines, their formulas, and the bytes of each phase, in GB (1e9 bytes)."""
    found = peaks(lines)
    phases = [phase for phase in PHASES if phase in found]
    name = max(len(line.name) for line in lines)
    heads = " ".join(f"{phase:>10}" for phase in phases)
    rows = [f"{'GB of one process':<{name}} {heads}"]
    for line in lines:
        cells = " ".join(
            f"{line.bytes / GB:>10.2f}" if line.phase in (ALWAYS, phase) else f"{'':>10}" for phase in phases
        )
        rows.append(f"{line.name:<{name}} {cells}  {line.formula}")
    rows.append(f"{'sum':<{name}} " + " ".join(f"{found[phase] / GB:>10.2f}" for phase in phases))
    return "\n".join(rows)


def _available(run: Run, machine: Machine, gpu_memory: float | None) -> tuple[float | None, str]:
    """Bytes for one process, and whose they are."""
    if gpu_memory is not None:
        return gpu_memory, "(--gpu_memory)"
    if run.launch.cpu:
        return machine.host / run.launch.processes_here, "of the host for a process"
    return (machine.memory, "of this GPU") if machine.count else (None, "")


def _stored_dtype(run: Run) -> str:
    """The type that weights are loaded in."""
    given = (run.args.model_init_kwargs or {}).get("dtype", run.model_args.dtype) or "auto"
    return run.shape.dtype if given == "auto" else str(given).removeprefix("torch.")


def _quantized(model_args: Any) -> float | None:
    if model_args.load_in_4bit:
        return BYTES_4BIT_NESTED if model_args.use_bnb_nested_quant else BYTES_4BIT
    return BYTES_8BIT if model_args.load_in_8bit else None


def _trained_bytes(run: Run, weight: int, half: bool) -> int:
    """Of a weight that is trained."""
    if run.launch.spread.startswith("zero") and half:
        return 2
    if run.shape.adapter:
        # PEFT keeps adapters in float32; TRL takes those on quantized weights to bfloat16.
        return 2 if _quantized(run.model_args) is not None else 4
    return 4 if run.launch.spread == "fsdp" and half else weight


def _optimizer(args: Any) -> tuple[int, int | None]:
    """Numbers kept for each weight, and the bytes of one; None for those of the weight."""
    name = str(getattr(args.optim, "value", args.optim))
    moments = next((count for kind, count in _MOMENTS.items() if kind in name), 2)
    return moments, 1 if "8bit" in name else None


def _judge_lines(report: Report, run: Run, setup: Setup) -> list[Line]:
    recipe = run.recipe
    shape = frozen_shape(report, "verify model", recipe.verify_model_path)
    if shape is None:
        return []
    width = _judge_bytes(recipe, shape, run.launch.cpu)
    # A question holds what a prompt does, and the plan.
    tokens = (run.longest_prompt or 0) + (run.longest_answer or 0)
    return frozen_lines("verify", shape, setup, recipe.verify_batch_size, tokens, recipe.verify_offload, width)


def _judge_bytes(recipe: Any, shape: Shape, cpu: bool) -> int:
    if recipe.verify_dtype != "auto":
        return dtype_bytes(recipe.verify_dtype)
    return shape.bytes_of_dtype if cpu else 2


def _advice(run: Run, phase: str) -> str:
    if phase == "generating":
        return (
            "lower per_device_train_batch_size or gradient_accumulation_steps: all completions of an update are "
            "generated at once; or use_vllm"
        )
    if phase == "training":
        smaller = "lower per_device_train_batch_size (and raise gradient_accumulation_steps)"
        return smaller if run.args.gradient_checkpointing else f"gradient_checkpointing: true, or {smaller}"
    if phase == "judging":
        return "lower verify_batch_size, or verify_offload: true"
    return "use_peft: true, load_in_4bit, or zero3.yaml or fsdp2.yaml on more GPUs"
