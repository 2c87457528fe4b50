"""How much memory a run takes on one GPU, line by line: arithmetic on sizes.

What is there all the time is exact: weights, gradients, optimizer. What comes and goes, see `stepgrpo.doctor.activations`, is
worked out roughly, for one phase at a time, as the phases do not overlap: `generating`, `training` (forward and backward),
`updating` and `judging`. Each line has its formula with the numbers put in. docs/doctor.md says where the formulas come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepgrpo.doctor.shape import Shape

ALWAYS, GENERATING, TRAINING, UPDATING, JUDGING = "always", "generating", "training", "updating", "judging"
PHASES = (GENERATING, TRAINING, UPDATING, JUDGING)

CONTEXT = 1e9  # of CUDA itself, its libraries' workspaces, and what the allocator cannot use: an assumption
UPDATE_GROUP = 1e9  # weights that ZeRO-3 updates at a time (sub_group_size)
# Of 4-bit weights: half a byte, and a float32 scale for each 64, or a byte instead, with a float32 for each 256 of these.
BYTES_4BIT, BYTES_4BIT_NESTED = 0.5 + 4 / 64, 0.5 + 1 / 64 + 4 / (64 * 256)
BYTES_8BIT = 1.0  # the scales, one a row, are left out


@dataclass(frozen=True)
class Setup:
    """How a model is trained.

    Attributes:
        weight_bytes: of one weight that is not quantized.
        quantized_bytes: of one that is; None without quantization.
        trained_bytes: of a weight that is trained, as it is stored.
        compute_bytes: of an activation: 2 in mixed or half precision, else 4.
        spread: one of `stepgrpo.doctor.launch_file.SPREADS`.
        processes: how many.
        moments: how many numbers the optimizer keeps of a weight.
        moment_bytes: of one such number; None for those of the weight (or float32 where that is kept beside it).
        rows: in one forward and backward.
        generated: completions that a process generates at once; 0 for supervised training.
        prompt, completion: tokens, at most.
        picture_tokens: of the prompt's, those of pictures.
        checkpointing: whether activations of layers are worked out again in the backward.
        scores_prompt: whether the loss is over the prompt's tokens too, as in supervised training.
        eager_attention: whether attention weights are kept (T, T) for each head.
        chunked_logits: whether the head works on tiles instead of all logits at once.
        autocast: whether weights in float32 are cast for each forward.
        vllm: bytes of a colocated vLLM; None without one.
        vllm_sleeps: whether it gives them back while training.
        gathers_to_generate: whether ZeRO-3 puts all weights together for generation.
        reference: whether there is a reference model.
        offload_optimizer, offload_params: whether those are on the host.
        on_cpu: whether there is no GPU.
    """

    weight_bytes: int = 2
    quantized_bytes: float | None = None
    trained_bytes: int = 2
    compute_bytes: int = 2
    spread: str = "none"
    processes: int = 1
    moments: int = 2
    moment_bytes: int | None = None
    rows: int = 1
    generated: int = 0
    prompt: int = 0
    completion: int = 0
    picture_tokens: int = 0
    checkpointing: bool = True
    scores_prompt: bool = False
    eager_attention: bool = False
    chunked_logits: bool = True
    autocast: bool = False
    vllm: float | None = None
    vllm_sleeps: bool = False
    gathers_to_generate: bool = True
    reference: bool = False
    offload_optimizer: bool = False
    offload_params: bool = False
    on_cpu: bool = False

    @property
    def shards(self) -> int:
        """Over how many processes weights are spread."""
        return self.processes if self.spread in ("zero3", "fsdp") else 1

    @property
    def gradient_shards(self) -> int:
        """Over how many processes gradients are spread."""
        return self.processes if self.spread in ("zero2", "zero3", "fsdp") else 1

    @property
    def optimizer_shards(self) -> int:
        """Over how many processes optimizer states are spread."""
        return self.processes if self.spread in ("zero1", "zero2", "zero3", "fsdp") else 1

    @property
    def master_copy(self) -> bool:
        """Whether a float32 copy of the trained weights is kept beside them, as DeepSpeed does."""
        return self.spread in ("zero1", "zero2", "zero3")


@dataclass(frozen=True)
class Line:
    """One use of memory on one GPU.

    Attributes:
        name: what.
        bytes: how much.
        phase: when: `always`, or one of `PHASES`.
        formula: how it was worked out.
    """

    name: str
    bytes: float
    phase: str
    formula: str


def peaks(lines: Sequence[Line]) -> dict[str, float]:
    """The bytes in use in each phase that has lines; `always` alone too."""
    always = sum(line.bytes for line in lines if line.phase == ALWAYS)
    found = {ALWAYS: always}
    for phase in PHASES:
        own = [line.bytes for line in lines if line.phase == phase]
        if own:
            found[phase] = always + sum(own)
    return found


def state_lines(shape: Shape, setup: Setup) -> list[Line]:
    """Weights, gradients and optimizer states: exact for torch's and DeepSpeed's optimizers.

    Full training, LoRA and QLoRA differ in what is trained: `shape.trainable` and `shape.adapter`. A frozen weight has
    only its own bytes. FSDP keeps trained weights in float32, DeepSpeed a float32 copy beside them (ZeRO, arXiv 1910.02054).
    """
    lines = [_weights(shape, setup)]
    if shape.adapter:
        lines.append(share_line("adapters", shape.adapter, setup.trained_bytes, setup.shards, setup.offload_params))
    if setup.reference:
        lines.append(share_line("reference model", shape.parameters, setup.weight_bytes, setup.shards))
    lines.append(share_line("gradients", shape.trainable, setup.trained_bytes, setup.gradient_shards))
    if setup.spread == "ddp" and setup.processes > 1:
        lines.append(share_line("DDP's buckets of gradients", shape.trainable, setup.trained_bytes, 1))
    moment = setup.moment_bytes or (4 if setup.master_copy else setup.trained_bytes)
    each, said = setup.moments * moment, f"{setup.moments} moments"
    if setup.master_copy:
        each, said = each + 4, f"fp32 copy, {said}"
    optimizer = share_line(
        f"optimizer ({said})", shape.trainable, each, setup.optimizer_shards, setup.offload_optimizer
    )
    lines.append(optimizer)
    if setup.master_copy and not setup.offload_optimizer:
        share = shape.trainable / setup.optimizer_shards
        group = min(share, UPDATE_GROUP) if setup.spread == "zero3" else share
        lines.append(Line("gradients in fp32", 4 * group, UPDATING, f"{short(group)} x 4 B"))
    return lines


def _weights(shape: Shape, setup: Setup) -> Line:
    if setup.quantized_bytes is not None:
        rest = shape.parameters - shape.quantizable
        size = (shape.quantizable * setup.quantized_bytes + rest * setup.weight_bytes) / setup.shards
        said = f"{short(shape.quantizable)} x {setup.quantized_bytes:.3g} B + {short(rest)} x {setup.weight_bytes} B"
        return Line("weights, quantized", size, ALWAYS, said + _over(setup.shards))
    own = max(shape.trainable - shape.adapter, 0) if setup.trained_bytes != setup.weight_bytes else 0
    size = ((shape.parameters - own) * setup.weight_bytes + own * setup.trained_bytes) / setup.shards
    said = f"{short(shape.parameters - own)} x {setup.weight_bytes} B"
    if own:
        said = f"{short(own)} x {setup.trained_bytes} B" + (f" + {said}" if own < shape.parameters else "")
    if setup.offload_params:
        return Line("weights", 0.0, ALWAYS, f"{said}: on the host")
    return Line("weights", size, ALWAYS, said + _over(setup.shards))


def share_line(name: str, count: int, width: int, shards: int, offload: bool = False, phase: str = ALWAYS) -> Line:
    """`count` numbers of `width` bytes, spread over `shards` processes, or on the host."""
    said = f"{short(count)} x {width} B"
    if offload:
        return Line(name, 0.0, phase, f"{said}: on the host")
    return Line(name, count * width / shards, phase, said + _over(shards))


def _over(shards: int) -> str:
    return f" / {shards}" if shards > 1 else ""


def short(count: float) -> str:
    """A number with three digits: `3.75e9`."""
    for size, unit in ((1e9, "e9"), (1e6, "e6"), (1e3, "e3")):
        if count >= size:
            return f"{count / size:.3g}{unit}" if count / size < 100 else f"{count / size:.0f}{unit}"
    return f"{count:.0f}"
