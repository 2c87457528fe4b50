"""The memory that comes and goes while a run generates, trains and judges: rough arithmetic on sizes."""

from __future__ import annotations

from stepgrpo.doctor.memory import (
    ALWAYS,
    CONTEXT,
    GENERATING,
    JUDGING,
    TRAINING,
    Line,
    Setup,
    share_line,
    short,
    state_lines,
)
from stepgrpo.doctor.shape import Shape

# TRL's chunked head (`fused_lm_head`) works out so many logits at a time.
TILE_TOKENS, TILE_VOCABULARY = 4096, 32768


def policy_lines(shape: Shape, setup: Setup) -> list[Line]:
    """The memory of a model that is trained."""
    return [
        *state_lines(shape, setup),
        *generation_lines(shape, setup),
        *training_lines(shape, setup),
        Line("Python and libraries" if setup.on_cpu else "CUDA and fragments", CONTEXT, ALWAYS, "an assumption"),
    ]


def generation_lines(shape: Shape, setup: Setup) -> list[Line]:
    """The key-value cache and the prefill; or vLLM's share of the GPU."""
    if setup.vllm is not None:
        phase = GENERATING if setup.vllm_sleeps else ALWAYS
        return [Line("vLLM", setup.vllm, phase, "vllm_gpu_memory_utilization x the GPU's memory")]
    if not setup.generated:
        return []
    rows, b = setup.generated, setup.compute_bytes
    cache = kv_cache(shape, rows, setup.prompt + setup.completion, b)
    tokens = rows * setup.prompt
    prefill = tokens * (3 * shape.intermediate + 4 * shape.hidden) * b
    lines = [
        Line(
            "KV cache",
            cache,
            GENERATING,
            f"{rows} x {setup.prompt + setup.completion} tokens x {shape.layers} layers x 2 x {shape.kv_width} x {b} B",
        ),
        Line(
            "prefill",
            prefill,
            GENERATING,
            f"{rows} x {setup.prompt} tokens x (3 x {shape.intermediate} + 4 x {shape.hidden}) x {b} B",
        ),
    ]
    if setup.spread == "zero3" and setup.gathers_to_generate and setup.processes > 1:
        missing = shape.parameters * setup.weight_bytes * (1 - 1 / setup.processes)
        lines.append(
            Line("all weights, gathered", missing, GENERATING, "ds3_gather_for_generation: what other GPUs hold")
        )
    return lines


def training_lines(shape: Shape, setup: Setup) -> list[Line]:
    """Activations and logits of one forward and backward. Rough: attention kernels that keep no (T, T) weights are assumed."""
    b = setup.compute_bytes
    tokens = setup.rows * (setup.prompt + setup.completion)
    kept = 10 * shape.hidden + 2 * shape.kv_width + 4 * shape.intermediate
    lines = []
    if setup.checkpointing:
        lines.append(
            Line(
                "inputs of the layers",
                tokens * shape.hidden * b * shape.layers,
                TRAINING,
                f"{tokens} tokens x {shape.hidden} x {b} B x {shape.layers} layers",
            )
        )
        again = kept + 2 * shape.intermediate  # and their gradients
        lines.append(
            Line(
                "one layer, worked out again",
                tokens * again * b,
                TRAINING,
                f"{tokens} tokens x (10 x {shape.hidden} + 2 x {shape.kv_width} + 6 x {shape.intermediate}) x {b} B",
            )
        )
    else:
        lines.append(
            Line(
                "activations of all layers",
                tokens * kept * b * shape.layers,
                TRAINING,
                f"{tokens} tokens x (10 x {shape.hidden} + 2 x {shape.kv_width} + 4 x {shape.intermediate}) x {b} B x "
                f"{shape.layers} layers",
            )
        )
    if setup.eager_attention:
        length = setup.prompt + setup.completion
        layers = 1 if setup.checkpointing else shape.layers
        size = setup.rows * shape.heads * length**2 * (4 + b) * layers
        lines.append(
            Line(
                "attention weights (eager)",
                size,
                TRAINING,
                f"{setup.rows} x {shape.heads} heads x {length}^2 x (4 + {b}) B x {layers} layers",
            )
        )
    lines += _pictures(shape, setup)
    scored = setup.rows * (setup.completion + (setup.prompt if setup.scores_prompt else 0))
    if setup.chunked_logits:
        tile, width = min(scored, TILE_TOKENS), min(shape.vocabulary, TILE_VOCABULARY)
        lines.append(
            Line("logits, in tiles", tile * width * b, TRAINING, f"{tile} tokens x {width} of the vocabulary x {b} B")
        )
        if shape.head_trained:
            lines.append(share_line("gradient of the head in fp32", shape.head_trained, 4, 1, phase=TRAINING))
    else:
        each = b + 4 + 4  # as computed, in float32, and the gradient
        lines.append(
            Line(
                "logits",
                scored * shape.vocabulary * each,
                TRAINING,
                f"{scored} tokens x {shape.vocabulary} x ({b} + 4 + 4) B",
            )
        )
    if setup.autocast and setup.trained_bytes == 4 and setup.spread in ("none", "ddp"):
        lines.append(share_line("weights cast to 16 bits", shape.trainable, 2, 1, phase=TRAINING))
    if setup.shards > 1:
        size = (2 * shape.largest_layer + shape.embeddings) * b
        lines.append(
            Line(
                "gathered weights",
                size,
                TRAINING,
                f"(2 layers x {short(shape.largest_layer)} + embeddings {short(shape.embeddings)}) x {b} B",
            )
        )
    return lines


def frozen_lines(
    name: str, shape: Shape, setup: Setup, batch: int, prompt: int, offload: bool = False, weight_bytes: int = 2
) -> list[Line]:
    """The memory of a model that only scores: the verify model or the teacher.

    Args:
        name: what to call it.
        shape: its sizes.
        setup: how it is spread.
        batch: rows in one forward.
        prompt: tokens of a row.
        offload: whether its weights wait on the host while it does not score.
        weight_bytes: of a weight.
    """
    phase = JUDGING if offload else ALWAYS
    size = batch * prompt * (3 * shape.intermediate + 4 * shape.hidden) * weight_bytes
    return [
        share_line(f"{name}: weights", shape.parameters, weight_bytes, setup.shards, phase=phase),
        Line(
            f"{name}: one forward",
            size,
            JUDGING,
            f"{batch} x {prompt} tokens x (3 x {shape.intermediate} + 4 x {shape.hidden}) x {weight_bytes} B",
        ),
    ]


def kv_cache(shape: Shape, rows: int, tokens: int, width: int = 2) -> float:
    """Bytes of the keys and values of `rows` sequences of `tokens` tokens, `width` bytes a number."""
    return rows * tokens * shape.layers * 2 * shape.kv_width * width


def _pictures(shape: Shape, setup: Setup) -> list[Line]:
    """A frozen tower keeps nothing for the backward."""
    if not (shape.vision_trainable and setup.picture_tokens and shape.vision_layers):
        return []
    patches = setup.rows * setup.picture_tokens * shape.patches_of_a_token
    wide = shape.vision_hidden
    each = wide if setup.checkpointing else 10 * wide + 4 * shape.vision_intermediate
    size = patches * each * setup.compute_bytes * shape.vision_layers
    said = f"{patches} patches x {each} x {setup.compute_bytes} B x {shape.vision_layers} layers"
    return [Line("vision tower", size, TRAINING, said)]
