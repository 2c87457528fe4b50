"""Step-level credit for GRPO: `A_token = A^E + ω · A^S`.

Names are imported when they are first used, so that `import stepgrpo` and the text functions load no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from stepgrpo._version import __version__

if TYPE_CHECKING:
    from stepgrpo.config import StepGRPOConfig
    from stepgrpo.frozen.callback import TeacherLogpCallback
    from stepgrpo.rewards.verify import VerifyReward
    from stepgrpo.rollout import Rollout
    from stepgrpo.segment.align import step_token_indices, token_spans
    from stepgrpo.segment.plan import PlanStep, parse_plan
    from stepgrpo.signal.rule import match_steps
    from stepgrpo.trainer import StepGRPOTrainer

_HOME = {
    "PlanStep": "stepgrpo.segment.plan",
    "Rollout": "stepgrpo.rollout",
    "StepGRPOConfig": "stepgrpo.config",
    "StepGRPOTrainer": "stepgrpo.trainer",
    "TeacherLogpCallback": "stepgrpo.frozen.callback",
    "VerifyReward": "stepgrpo.rewards.verify",
    "match_steps": "stepgrpo.signal.rule",
    "parse_plan": "stepgrpo.segment.plan",
    "step_token_indices": "stepgrpo.segment.align",
    "token_spans": "stepgrpo.segment.align",
}

__all__ = [
    "PlanStep",
    "Rollout",
    "StepGRPOConfig",
    "StepGRPOTrainer",
    "TeacherLogpCallback",
    "VerifyReward",
    "__version__",
    "match_steps",
    "parse_plan",
    "step_token_indices",
    "token_spans",
]


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
