"""What a run on a GPU must have done."""

import math

import torch


def check_log(log, updates, credited=True):
    """Every update has a finite loss and moved weights; step credit reached tokens where the model writes plans.

    Args:
        log: of `launch`.
        updates: how many there should be.
        credited: whether the model writes plans.
    """
    assert len(log) == updates and all(math.isfinite(entry["loss"]) for entry in log)
    assert all(0 < entry["grad_norm"] < math.inf for entry in log)
    if credited:
        assert max(entry["step_credit/tokens"] for entry in log) > 0.05


def check_weights(before, after):
    """The saved model is whole, has the shapes it had, and was trained."""
    old, new = weights(before), weights(after)
    assert {name: weight.shape for name, weight in old.items()} == {name: weight.shape for name, weight in new.items()}
    assert all(torch.isfinite(weight).all() for weight in new.values())
    # The weights of norms are near one, where bfloat16 is too coarse for a few small updates.
    assert len(changed(old, new)) > len(old) / 2


def check_merged(base, out, names=("q_proj.weight", "v_proj.weight")):
    """The merged model differs from its base in the adapted weights of all layers, and in no others."""
    old, new = weights(base), weights(out / "merged")
    assert changed(old, new) == {name for name in old if name.endswith(names)} != set()


def changed(old, new):
    """Names of weights that differ by more than how they were rounded: ZeRO saves bfloat16 of what was float32."""
    return {name for name in old if not torch.equal(old[name].bfloat16(), new[name].bfloat16())}


def weights(path):
    """Of a saved model, on the CPU, by name."""
    from stepgrpo.modeling import load_model

    return load_model(path).state_dict()
