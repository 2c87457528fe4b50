"""How `accelerate launch` will start a run: how many processes, and what is spread over them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# How weights, gradients and optimizer states are spread.
SPREADS = ("none", "ddp", "zero1", "zero2", "zero3", "fsdp")


@dataclass(frozen=True)
class Launch:
    """What an accelerate config says.

    Attributes:
        processes: on all machines. machines: how many.
        spread: one of `SPREADS`.
        cpu: whether it runs on CPUs.
        mixed_precision: `no`, `fp16`, `bf16` or `fp8`.
        offload_optimizer, offload_params: whether those are kept on the host.
        file: where it was read, None for accelerate's defaults.
    """

    processes: int = 1
    machines: int = 1
    spread: str = "none"
    cpu: bool = False
    mixed_precision: str = "no"
    offload_optimizer: bool = False
    offload_params: bool = False
    file: str | None = None

    @property
    def processes_here(self) -> int:
        """On each machine."""
        return max(self.processes // max(self.machines, 1), 1)

    @property
    def shards(self) -> int:
        """Over how many processes the weights are spread."""
        return self.processes if self.spread in ("zero3", "fsdp") else 1


def read_launch(file: str | None, num_processes: int | None = None, gpus: int = 0) -> Launch:
    """Reads an accelerate config by accelerate's own reader.

    Args:
        file: YAML or JSON; where not given, accelerate's default file if there is one.
        num_processes: instead of the file's.
        gpus: how many this machine has, the number of processes where nothing says otherwise.

    Raises:
        FileNotFoundError, ValueError: if it cannot be read, or does not say what is needed.
    """
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file

    if file is None and not os.path.isfile(default_config_file):
        processes = num_processes or max(gpus, 1)
        return Launch(processes, spread="none" if processes == 1 else "ddp", cpu=gpus == 0)
    config: Any = load_config_from_file(file)
    processes = num_processes or config.num_processes
    if processes is None or processes < 1:
        raise ValueError(f"num_processes={processes!r} in {file or default_config_file}: give --num_processes.")
    kind = str(getattr(config.distributed_type, "value", config.distributed_type))
    deepspeed, fsdp = dict(config.deepspeed_config or {}), dict(config.fsdp_config or {})
    if kind == "DEEPSPEED":
        spread, offload = _deepspeed(deepspeed)
    elif kind == "FSDP":
        spread, offload = "fsdp", (bool(fsdp.get("fsdp_offload_params")),) * 2
    else:
        spread, offload = ("none" if processes == 1 else "ddp"), (False, False)
    return Launch(
        processes,
        config.num_machines or 1,
        spread,
        bool(config.use_cpu),
        str(config.mixed_precision or "no"),
        *offload,
        file or default_config_file,
    )


def _deepspeed(config: dict[str, Any]) -> tuple[str, tuple[bool, bool]]:
    """The spread, and whether optimizer and weights are offloaded."""
    if config.get("deepspeed_config_file"):
        zero = json.loads(Path(config["deepspeed_config_file"]).read_text(encoding="utf-8"))
        zero = zero.get("zero_optimization", {})
        stage, devices = (
            zero.get("stage", 0),
            [(zero.get(name) or {}).get("device", "none") for name in ("offload_optimizer", "offload_param")],
        )
    else:
        stage = config.get("zero_stage", 2)
        devices = [config.get(f"offload_{name}_device", "none") for name in ("optimizer", "param")]
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"zero_stage={stage!r} is no stage. Choose one of: 0, 1, 2, 3.")
    offloaded = [str(device) in ("cpu", "nvme") for device in devices]
    return ("ddp" if stage == 0 else f"zero{stage}"), (offloaded[0], offloaded[1])
