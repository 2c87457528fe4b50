"""What a teacher reads: its templates, its two contexts, and that they end as the policy's prompt does."""

import pytest
import torch

from stepgrpo.frozen.context import TEMPLATES, TeacherContexts, read_context_template
from stepgrpo.segment.plan import PlanStep
from tests.conftest import CHAT_TEMPLATE
from tests.vlm import picture

PLAN = [PlanStep(35, "find a Tomato"), PlanStep(129, "pick up the Tomato")]
REFERENCE = (
    '{"executable_plan": [{"action_id": 35, "action_name": "find a Tomato"}, '
    '{"action_id": 129, "action_name": "pick up the Tomato"}]}'
)
ROW = {"prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "cook $5 it"}], "id": 3}


def text_of(contexts, context, tokenizer):
    return tokenizer.decode(torch.as_tensor(contexts.encode(context)["input_ids"])[0])


def test_the_two_contexts(tiny_tokenizer):
    contexts = TeacherContexts(tiny_tokenizer)
    contexts.check(ROW, PLAN)
    alone = text_of(contexts, contexts.alone(ROW), tiny_tokenizer)
    assert alone == "<|system|>be brief<|end|><|user|>cook $5 it<|end|><|assistant|>"
    read = text_of(contexts, contexts.with_reference(ROW, PLAN), tiny_tokenizer)
    assert read.startswith("<|system|>be brief<|end|><|user|>cook $5 it\n\n") and read.endswith("<|end|><|assistant|>")
    begin, end = read.index("plan begin ==="), read.index("=== Reference plan end")
    assert begin < read.index(REFERENCE) < end and "Now plan yourself" in read[end:]
    names = text_of(contexts, contexts.with_reference(ROW, PLAN, action_ids=False), tiny_tokenizer)
    assert (
        '{"executable_plan": [{"action_name": "find a Tomato"}' in names
        and ROW["prompt"][1]["content"] == "cook $5 it"
    )


def test_the_problem_alone_is_the_policys_prompt_token_for_token(tiny_tokenizer):
    contexts = TeacherContexts(tiny_tokenizer)
    prompt = tiny_tokenizer.apply_chat_template(ROW["prompt"], add_generation_prompt=True, return_dict=False)
    assert torch.as_tensor(contexts.encode(contexts.alone(ROW))["input_ids"]).tolist() == [prompt]


def test_own_templates_name_columns_and_files(tiny_tokenizer, tmp_path):
    (tmp_path / "mine.txt").write_text("${id}: ${problem}\nplan ${reference} $$1\n")
    contexts = TeacherContexts(tiny_tokenizer, str(tmp_path / "mine.txt"), "${problem} (${id})")
    read = text_of(contexts, contexts.with_reference(ROW, PLAN), tiny_tokenizer)
    assert f"<|user|>3: cook $5 it\nplan {REFERENCE} $1<|end|>" in read
    assert "<|user|>cook $5 it (3)<|end|>" in text_of(contexts, contexts.alone(ROW), tiny_tokenizer)
    with pytest.raises(ValueError, match=r"names \$\{scene\}.*Columns: id, prompt"):
        TeacherContexts(tiny_tokenizer, "${problem} ${reference} ${scene}").with_reference(ROW, PLAN)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("nowhere.txt", r"step_reference_template='nowhere.txt' is neither a file nor a text with \$\{problem\}"),
        ("${problem}", r"has no \$\{reference\}"),
        ("${reference}", r"has no \$\{problem\}"),
        ("${problem} ${reference} 5$", "starts no name"),
        ("${problem} ${reference} $problem", "more than once"),
    ],
)
def test_wrong_templates_are_refused(template, message):
    with pytest.raises(ValueError, match=message):
        read_context_template(template, "step_reference_template", ("problem", "reference"))


def test_the_packages_templates_pass_their_own_check():
    for file in TEMPLATES.glob("*.txt"):
        needs = ("problem",) if "alone" in file.name else ("problem", "reference")
        assert read_context_template(str(file), file.name, needs) is not None
    assert len(list(TEMPLATES.glob("*.txt"))) == 3


def test_text_prompts_end_alike_or_are_refused(tiny_tokenizer):
    row = {"prompt": "Task: cook it.\nPlan: "}
    contexts = TeacherContexts(tiny_tokenizer)
    contexts.check(row, PLAN)
    read = text_of(contexts, contexts.with_reference(row, PLAN), tiny_tokenizer)
    assert read.endswith("\n\nTask: cook it.\nPlan: ") and REFERENCE in read
    with pytest.raises(ValueError, match=r"end differently.*put \$\{problem\} last"):
        TeacherContexts(tiny_tokenizer, "${problem}\n${reference} Now plan.").check(row, PLAN)


def test_a_chat_template_that_ends_otherwise_for_one_context_is_refused(tiny_tokenizer):
    """Reports of teachers whose first scored token was an artefact: the answer has to begin the same way in both."""
    import copy

    odd = copy.deepcopy(tiny_tokenizer)
    odd.chat_template = CHAT_TEMPLATE.replace(
        "<|assistant|>{% endif %}",
        "<|assistant|>{% if 'Reference' in messages[-1]['content'] %}<think>{% else %}<plan>{% endif %}{% endif %}",
    )
    with pytest.raises(ValueError, match=r"end differently, .*<think>.*and .*<plan>.*begin the answer"):
        TeacherContexts(odd).check(ROW, PLAN)


def test_chat_template_options_and_the_policys_template(tiny_tokenizer):
    import copy

    bare = copy.deepcopy(tiny_tokenizer)
    bare.chat_template = None
    template = CHAT_TEMPLATE.replace("<|assistant|>", "<|assistant|>{{ mood }}")
    contexts = TeacherContexts(bare, chat_template=template, chat_template_kwargs={"mood": "calm"})
    contexts.check(ROW, PLAN)
    assert text_of(contexts, contexts.alone(ROW), tiny_tokenizer).endswith("<|assistant|>calm")


def test_contexts_have_keys(tiny_tokenizer):
    contexts = TeacherContexts(tiny_tokenizer)
    same = contexts.alone(ROW).key
    assert same == contexts.alone({**ROW, "id": 4}).key != contexts.with_reference(ROW, PLAN).key
    assert contexts.with_reference(ROW, PLAN).key != contexts.with_reference(ROW, PLAN[:1]).key


def test_a_prompt_without_a_user_is_refused(tiny_tokenizer):
    with pytest.raises(ValueError, match="without a message of the user"):
        TeacherContexts(tiny_tokenizer).alone({"prompt": [{"role": "system", "content": "x"}]})


def test_pictures_are_shown_in_both_contexts(vlm_dir):
    from stepgrpo.modeling import load_processing_class

    processor = load_processing_class(vlm_dir)
    contexts = TeacherContexts(processor)
    row = {"prompt": [{"role": "user", "content": "cook it"}], "images": [picture("red")]}
    contexts.check(row, PLAN)
    inputs = [contexts.encode(c) for c in (contexts.alone(row), contexts.with_reference(row, PLAN))]
    pixels = [one["pixel_values"] for one in inputs]
    assert pixels[0].equal(pixels[1]) and inputs[0]["input_ids"].shape[1] < inputs[1]["input_ids"].shape[1]
    blue = {**row, "images": [picture("blue")]}
    assert contexts.alone(row).key == contexts.alone({**row, "images": [picture("red")]}).key
    assert contexts.alone(blue).key != contexts.alone(row).key
    parts = [{"type": "image"}, {"type": "text", "text": "cook"}, {"type": "text", "text": " it"}]
    written = contexts.alone({**row, "prompt": [{"role": "user", "content": parts}]})
    assert torch.equal(torch.as_tensor(contexts.encode(written)["input_ids"]), torch.as_tensor(inputs[0]["input_ids"]))
    assert "pixel_values" in contexts.encode(contexts.stand_in())
