"""Prompt templates: the package's own, the user's, and examples in them."""

from configparser import ConfigParser

import pytest

from stepgrpo.data.household import ACTIONS
from stepgrpo.data.prompts import FOLDER, Draft, check_template, order_examples, read_prompt_template, write_prompts
from stepgrpo.data.sources import SOURCES, read_rows


def draft(number, group=None, kind="a", **values):
    row = {"id": number, "prompt": "own", "gt_action_close": [number], "task_type": kind}
    return Draft(row, {"instruction": f"do {number}", **values}, str(number) if group is None else group)


def template(tmp_path, text):
    (tmp_path / "t.txt").write_text(text)
    read_prompt_template.cache_clear()
    return read_prompt_template(tmp_path / "t.txt")


def test_every_source_can_fill_in_its_own_template_and_the_benchmarks():
    for prefix, source in SOURCES.items():
        check_template(read_prompt_template("embodiedbench"), source.fields, prefix, examples=1)
        if source.template:
            check_template(read_prompt_template(source.template), source.fields, prefix)
    assert {file.stem for file in FOLDER.glob("*.txt")} == {"alfred", "alfred_names", "embodiedbench"}


def test_the_words_of_the_alfred_templates_are_those_of_older_runs():
    assert read_prompt_template("alfred").text == (
        "Plan this task for a household robot: ${instruction}\nActions and their ids:\n${scene_actions}\n"
        'Answer with JSON: {"executable_plan": [{"action_id": 0, "action_name": "find a Cart"}]}'
    )
    assert read_prompt_template("alfred_names").text == (
        "Plan this task for a household robot: ${instruction}\nObjects: ${objects}\n"
        "Actions: ${verbs}; the second X is X_2\n"
        'Answer with JSON: {"executable_plan": [{"action_name": "find a X"}]}'
    )


def test_the_templates_are_part_of_the_package():
    settings = ConfigParser()
    settings.read(FOLDER.parents[2] / "setup.cfg")
    assert "data/prompts/*.txt" in settings["options.package_data"]["stepgrpo"].split()


def test_bad_templates_are_refused_at_start(tmp_path):
    with pytest.raises(ValueError, match=r"'none' is neither a readable file nor one of alfred, alfred_names, embo"):
        read_prompt_template("none")
    with pytest.raises(ValueError, match=r"t\.txt': line 2 has a \$ that starts no name"):
        template(tmp_path, "a\n$5")
    with pytest.raises(ValueError, match=r"names \$\{mood\}, which alfred: cannot fill in\. It has: instruction, "):
        check_template(template(tmp_path, "${mood}"), SOURCES["alfred:"].fields, "alfred:")
    with pytest.raises(ValueError, match=r"examples=2, but template .* has no \$\{examples\}"):
        check_template(template(tmp_path, "${instruction}"), ("instruction",), "x", examples=2)
    with pytest.raises(ValueError, match=r"examples=1: the rows of 'household' bring their prompts"):
        read_rows("household", n=1, examples=1)


def test_a_template_of_ones_own(tmp_path):
    template(tmp_path, "Dollar $$, last ${last_action_id}: ${input} ${history}\n")
    (plain,), _ = read_rows("household", n=1)
    (row,), _ = read_rows("household", n=1, template=tmp_path / "t.txt")
    expected = f"Dollar $, last {len(ACTIONS) - 1}: {plain['prompt'][0]['content']} Nothing yet."
    assert row["prompt"] == [{"role": "user", "content": expected}]
    assert {key: row[key] for key in row if key != "prompt"} == {key: plain[key] for key in plain if key != "prompt"}


def test_a_row_without_what_the_template_names(tmp_path):
    with pytest.raises(
        ValueError, match=r"names \$\{actions\}, which a row has not. It has: examples, history, instruc"
    ):
        write_prompts([draft(1)], template(tmp_path, "${actions}"))


def test_examples_are_other_tasks(tmp_path):
    layout = template(tmp_path, "${examples}Now: ${instruction}")
    drafts = [draft(1), draft(2, group="1"), draft(3), Draft({"id": 4}, {"instruction": "do 3"}, "4")]
    pool = [drafts[1], drafts[2], drafts[0]]
    texts = [row["prompt"][0]["content"] for row in write_prompts(drafts, layout, 1, pool)]
    plan = '{{"executable_plan": [{{"action_id": {}}}]}}'
    assert texts[0] == f"Examples:\nTask: do 3\n{plan.format(3)}\n\nNow: do 1"  # 2 is the same task
    assert texts[2] == f"Examples:\nTask: do 2\n{plan.format(2)}\n\nNow: do 3"
    assert texts[3] == f"Examples:\nTask: do 2\n{plan.format(2)}\n\nNow: do 3"  # 3 has the same instruction
    with pytest.raises(ValueError, match="examples=2, but there are only 1 other tasks to show"):
        write_prompts(drafts, layout, 2, pool)


def test_examples_take_turns_by_task_type_and_depend_on_the_seed():
    drafts = [draft(i, kind="a" if i < 8 else "b") for i in range(10)] + [Draft({"id": 99}, {}, "99")]
    order = order_examples(drafts, seed=0)
    types = [one.row["task_type"] for one in order]
    assert sorted(types[:2]) == sorted(types[2:4]) == ["a", "b"] and set(types[4:]) == {"a"}
    assert len(order) == 10 and order == order_examples(drafts, seed=0)
    assert any(order != order_examples(drafts, seed=seed) for seed in (1, 2, 3))


def test_examples_of_the_household_come_from_the_split_train():
    rows, _ = read_rows("household", "dev", 2, template="embodiedbench", examples=2)
    train = {row["instruction"] for row in read_rows("household", "train", 256)[0]}
    text = rows[0]["prompt"][0]["content"]
    shown = [line.removeprefix("Task: ") for line in text.split("\n") if line.startswith("Task: ")]
    assert len(shown) == 3 and shown[0] == rows[0]["instruction"] and set(shown[1:]) <= train
