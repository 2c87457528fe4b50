"""What this machine has: GPUs, driver, memory, and the room that several processes need."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from stepgrpo.doctor.findings import Report
from stepgrpo.doctor.launch_file import Launch

GB = 1e9
_SHM_LEAST = 1 * GB  # of NCCL's and the data loaders' buffers; containers often have 64 MB
_BUSY = 1 * GB  # memory in use that is more than a driver's own


@dataclass(frozen=True)
class Machine:
    """The accelerators of a machine.

    Attributes:
        kind: `cuda`, `xpu`, `mps` or `cpu`.
        count: how many accelerators.
        memory: bytes of the smallest of them; of the host for `cpu` and `mps`.
        host: bytes of the machine's own memory.
    """

    kind: str
    count: int
    memory: int
    host: int


def nvidia_smi() -> list[dict[str, Any]] | None:
    """What the driver says of each GPU: `name`, `total` and `used` (bytes) and `driver`; None without `nvidia-smi`.

    Asked of the driver, because torch would take memory of each GPU to answer.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    fields = "name,memory.total,memory.used,driver_version"
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return _read_smi(done.stdout) if done.returncode == 0 else []


def _read_smi(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 4 or not parts[1].isdecimal():
            continue
        used = int(parts[2]) if parts[2].isdecimal() else 0
        found.append({"name": parts[0], "total": int(parts[1]) << 20, "used": used << 20, "driver": parts[3]})
    return found


def host_memory() -> int:
    """Bytes of the machine's memory."""
    import psutil

    return int(psutil.virtual_memory().total)


def check_devices(report: Report) -> Machine:
    """Adds what accelerators there are and whether torch can use them."""
    report.section("devices")
    import torch

    cards = nvidia_smi()
    if torch.cuda.is_available():
        return _cuda(report, torch, cards)
    if cards and torch.version.cuda is None and torch.version.hip is None:
        report.fail(
            "GPU",
            f"{len(cards)} x {cards[0]['name']}, but torch {torch.__version__} is built for CPUs",
            "install a build of torch with CUDA",
        )
    elif cards:
        report.fail(
            "GPU",
            f"{len(cards)} x {cards[0]['name']}, but torch (CUDA {torch.version.cuda}) cannot use them with the driver "
            f"{cards[0]['driver']}",
            "update the driver, or install a torch built for an older CUDA; see CUDA_VISIBLE_DEVICES too",
        )
    elif torch.accelerator.is_available():
        kind = str(torch.accelerator.current_accelerator())
        report.ok("accelerator", f"{torch.accelerator.device_count()} x {kind}")
        _host(report)
        return Machine(kind, torch.accelerator.device_count(), host_memory(), host_memory())
    else:
        report.ok("GPU", "none; torch runs on the CPU")
    _host(report)
    return Machine("cpu", 0, host_memory(), host_memory())


def _cuda(report: Report, torch: Any, cards: list[dict[str, Any]] | None) -> Machine:
    count = torch.cuda.device_count()
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    memory = min(card.total_memory for card in properties)
    names = ", ".join(dict.fromkeys(card.name for card in properties))
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    driver = f", driver {cards[0]['driver']}" if cards else ""
    report.ok("GPU", f"{count} x {names}, {memory / GB:.0f} GB; {built}{driver}")
    if torch.cuda.is_bf16_supported(including_emulation=False):
        report.ok("bf16", "supported")
    else:
        report.warn("bf16", "not supported by this GPU", "set bf16: false, and fp16: true or dtype: float32")
    busy = [card for card in cards or [] if card["used"] > _BUSY]
    if busy:
        report.warn("memory in use", f"on {len(busy)} GPU(s), up to {max(card['used'] for card in busy) / GB:.1f} GB")
    if count > 1:
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            report.ok("NCCL", ".".join(map(str, torch.cuda.nccl.version())))
        else:
            report.fail(
                "NCCL", "torch is built without it: several GPUs cannot work together", "install another torch"
            )
    _host(report)
    return Machine("cuda", count, memory, host_memory())


def _host(report: Report) -> None:
    report.ok("host", f"{os.cpu_count()} CPUs, {host_memory() / GB:.0f} GB")


def check_launch(report: Report, launch: Launch, machine: Machine) -> None:
    """Adds whether the machine has what the accelerate config asks for."""
    where = launch.file or "accelerate's defaults"
    said = f"{launch.processes} process{'es' if launch.processes > 1 else ''}"
    said += f", {launch.spread}" if launch.spread != "none" else ""
    said += f", {launch.machines} machines" if launch.machines > 1 else ""
    said += ", on CPUs" if launch.cpu else ""
    if launch.cpu or launch.processes_here <= machine.count:
        report.ok("processes", f"{said} ({where})")
    elif machine.count:
        report.fail(
            "processes",
            f"{said} ({where}): {launch.processes_here} on this machine with {machine.count} GPU(s)",
            f"give --num_processes {machine.count * launch.machines}, or take a machine with more",
        )
    else:
        report.warn(
            "processes",
            f"{said} ({where}): this machine has no GPU",
            "what needs one was not checked: run this there too",
        )
    if launch.cpu and launch.spread not in ("none", "ddp"):
        report.fail("spread", f"{launch.spread} on CPUs: accelerate ignores it", "use accelerate_configs/cpu.yaml")
    if launch.processes_here > 1:
        check_shared_memory(report)


def check_shared_memory(report: Report, folder: str = "/dev/shm", least: float = _SHM_LEAST) -> None:
    """Adds whether processes of one machine have the room to exchange data."""
    if not os.path.isdir(folder):
        return
    free = shutil.disk_usage(folder).free
    if free < least:
        report.warn(folder, f"{free / GB:.2f} GB free", "in a container: --shm-size=8g, or --ipc=host")
    else:
        report.ok(folder, f"{free / GB:.1f} GB free")
