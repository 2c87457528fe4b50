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
TILE_COPIES = 7  # in float32, where it works without Triton


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
    kept, said = _kept(shape, setup)
    lines = []
    if setup.checkpointing:
        lines.append(
            Line(
                "inputs of the layers",
                tokens * shape.hidden * b * (shape.layers + 2),
                TRAINING,
                f"{tokens} tokens x {shape.hidden} x {b} B x ({shape.layers} layers + 2)",
            )
        )
        # With the gradients of the MLP's two widest.
        size = tokens * (kept + 2 * shape.intermediate * b)
        lines.append(
            Line(
                "one layer, worked out again",
                size,
                TRAINING,
                f"{tokens} tokens x ({said} + 2 x {shape.intermediate} x {b} B)",
            )
        )
    else:
        size = tokens * kept * shape.layers
        lines.append(
            Line("activations of all layers", size, TRAINING, f"{tokens} tokens x ({said}) x {shape.layers} layers")
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
    lines += _logits(shape, setup)
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


def _kept(shape: Shape, setup: Setup) -> tuple[int, str]:
    """Bytes that one layer keeps of one token for the backward, and how they come about.

    Frozen linear layers need no inputs; adapters keep theirs, in their own type unless autocast makes it another.
    """
    b = setup.compute_bytes
    if not shape.adapter:
        said = f"(10 x {shape.hidden} + 2 x {shape.kv_width} + 4 x {shape.intermediate}) x {b} B"
        return (10 * shape.hidden + 2 * shape.kv_width + 4 * shape.intermediate) * b, said
    width = b if setup.autocast else setup.trained_bytes
    frozen = (8 * shape.hidden + 2 * shape.kv_width + 3 * shape.intermediate) * b
    said = f"(8 x {shape.hidden} + 2 x {shape.kv_width} + 3 x {shape.intermediate}) x {b} B"
    return frozen + shape.adapter_inputs * width, f"{said} + {shape.adapter_inputs} x {width} B"


def _logits(shape: Shape, setup: Setup) -> list[Line]:
    b = setup.compute_bytes
    # Without a GPU, TRL's head works out the prompt's positions too, and its tiles are copied in float32.
    all_positions = setup.scores_prompt or (setup.chunked_logits and setup.on_cpu)
    scored = setup.rows * (setup.completion + (setup.prompt if all_positions else 0))
    if not setup.chunked_logits:
        # As worked out, in float32, and the gradient.
        size, said = scored * shape.vocabulary * (b + 8), f"{scored} tokens x {shape.vocabulary} x ({b} + 4 + 4) B"
        return [Line("logits", size, TRAINING, said)]
    copies = TILE_COPIES if setup.on_cpu else 0
    tile, each = min(scored, TILE_TOKENS), b + 4 * copies
    said = f"{tile} tokens x {TILE_VOCABULARY} of the vocabulary x {each} B"
    lines = [Line("logits, in tiles", tile * TILE_VOCABULARY * each, TRAINING, said)]
    if shape.head_trained:
        lines.append(share_line("gradient of the head in fp32", shape.head_trained, 4, 1, phase=TRAINING))
    return lines


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
