"""The models that are trained on a GPU: a planner that writes plans, and an untrained one of Qwen2.5-VL-3B's shape."""

import torch


def save_planner(path):
    """Saves an untrained planner and its tokenizer, those of the demo, and returns the directory."""
    from stepgrpo.data.household import household_rows, plan_json
    from stepgrpo.demo.settings import PlannerSize
    from stepgrpo.demo.tokenizer import train_tokenizer
    from stepgrpo.demo.warmstart import build_planner

    rows = household_rows("train", 400, seed=0)
    texts = [row["prompt"][0]["content"] for row in rows] + [plan_json(row["gt_action_close"]) for row in rows]
    tokenizer = train_tokenizer(texts)
    build_planner(tokenizer, PlannerSize(), seed=0).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def save_vlm(path, config, device="cuda"):
    """Saves a Qwen2.5-VL with random bfloat16 weights and its processor, and returns the directory.

    The tokenizer is trained on household texts and has fewer tokens than the model: the others decode to nothing.

    Args:
        path: where to save.
        config: a `Qwen2_5_VLConfig`; the ids of special tokens are set in it.
        device: where the weights are drawn.
    """
    import transformers as t

    from tests import vlm

    tokenizer = vlm._qwen_tokenizer()
    for name, token in vlm._qwen_ids(tokenizer).items():
        setattr(config, name, token)
    config.text_config.eos_token_id, config.text_config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = t.Qwen2_5_VLForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(usual)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(path)
    pictures, videos = t.Qwen2VLImageProcessor(), t.Qwen2VLVideoProcessor()
    t.Qwen2_5_VLProcessor(pictures, tokenizer, videos, chat_template=vlm.QWEN_TEMPLATE).save_pretrained(path)
    return path


def ids_modulo_seven(completion_ids, **_):
    """A reward that any two completions may differ in, whatever they decode to."""
    return [float(sum(ids) % 7) for ids in completion_ids]
