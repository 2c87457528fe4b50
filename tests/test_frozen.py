"""Frozen models: loaded once, put on the trainer's processes as TRL does, answers read off the logits."""

import gc
import math
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from stepgrpo.frozen import load, model, prepare
from stepgrpo.frozen.answers import answer_token_ids, both_answers, yes_minus_no
from stepgrpo.frozen.load import load_frozen


class WordTokenizer:
    """Splits at the pieces of its vocabulary, the longest first."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def encode(self, text, add_special_tokens=True):
        ids = [0] if add_special_tokens else []
        while text:
            best = max((piece for piece in self.pieces if text.startswith(piece)), key=len)
            ids.append(self.pieces.index(best) + 1)
            text = text[len(best) :]
        return ids

    def decode(self, ids):
        return "".join(self.pieces[i - 1] for i in ids)

    def convert_ids_to_tokens(self, ids):
        return [self.pieces[i - 1] for i in ids]


LETTERS = [*"yesnoYESNO "]


def test_all_spellings_that_are_one_token_count():
    tokenizer = WordTokenizer(*LETTERS, "yes", " yes", "Yes", " YES", "no", " No")
    assert both_answers(tokenizer, ["yes"], ["no"]) == ([12, 13, 14, 15], [16, 17])


def test_an_answer_of_several_tokens_is_known_by_its_first():
    assert both_answers(WordTokenizer(*LETTERS), ["yes"], ["no"]) == ([1, 6], [4, 9])


def test_answers_that_begin_alike_are_refused():
    with pytest.raises(ValueError, match=r"begin with the same token for this tokenizer: \['n', 'N'\]"):
        both_answers(WordTokenizer(*LETTERS), ["no"], ["noon"])
    for words in ([], ["yes", " "]):
        with pytest.raises(ValueError, match="none of them empty"):
            answer_token_ids(WordTokenizer(*LETTERS), words)


def test_yes_minus_no_by_hand():
    logits = torch.tensor([[3.0, 1.0, 1.0, 3.0], [5.0, 5.0, 5.0, 5.0], [200.0, 0.0, 0.0, 0.0]])
    scores, mass = yes_minus_no(logits, [0], [1, 2])
    e3, e1 = math.exp(3), math.exp(1)
    assert scores.tolist() == pytest.approx([(e3 - 2 * e1) / (e3 + 2 * e1), (1 - 2) / 3, 1.0])
    assert mass.tolist() == pytest.approx([(e3 + 2 * e1) / (2 * e3 + 2 * e1), 3 / 4, 1.0])


@pytest.fixture
def model_dir(make_model, tiny_tokenizer, tmp_path):
    make_model().save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_the_same_weights_are_loaded_once_and_let_go(model_dir):
    first, second = load_frozen(model_dir), load_frozen(f"{model_dir}/../{model_dir.name}", offload=True)
    assert first is second and first.offload is False
    assert load_frozen(model_dir, dtype="bfloat16") is not first
    assert load_frozen(first.model) is first
    del first, second
    gc.collect()
    assert not any(str(model_dir) in key for key in load._LOADED)


def test_a_loaded_model_is_shared_too(make_model, tiny_tokenizer):
    loaded = make_model()
    assert load_frozen(loaded, tiny_tokenizer) is load_frozen(loaded, tiny_tokenizer)
    assert not any(weight.requires_grad for weight in loaded.parameters()) and not loaded.training


def test_what_cannot_be_loaded_is_named(make_model, tmp_path):
    with pytest.raises(ValueError, match=r"frozen model '.*nowhere' cannot be loaded"):
        load_frozen(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="pass `processing_class`"):
        load_frozen(make_model())


def test_every_process_reads_whole_weights_under_fsdp(monkeypatch, model_dir):
    seen = []
    real = load.modeling.load_model

    def spy(*args, **kwargs):
        seen.append((load.os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"], kwargs))
        return real(*args, **kwargs)

    monkeypatch.setattr(load.modeling, "load_model", spy)
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    frozen = load_frozen(model_dir)
    assert seen == [("false", {"dtype": "auto"})] and frozen.model.dtype == torch.float32
    assert load.os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true"


def test_weights_go_straight_to_a_gpu_only_where_they_stay_whole(monkeypatch):
    monkeypatch.setattr(load, "_device", lambda: torch.device("cuda", 3))
    assert load._placement(offload=False) == {"device_map": {"": torch.device("cuda", 3)}}
    assert load._placement(offload=True) == {}
    assert load._dtype("auto") == torch.bfloat16 and load._dtype("float16") == torch.float16
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert load._placement(offload=False) == {}
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    monkeypatch.setattr(load, "is_deepspeed_zero3_enabled", lambda: True)
    assert load._placement(offload=False) == {}


def fake_accelerator(kind, stage=None):
    plugin = SimpleNamespace(zero_stage=stage)
    return SimpleNamespace(
        distributed_type=kind,
        state=SimpleNamespace(deepspeed_plugin=plugin),
        device=torch.device("cpu"),
        prepare_model=lambda given, evaluation_mode: ("replica", given, evaluation_mode),
    )


@pytest.mark.parametrize(
    ("kind", "stage", "way", "sharded"),
    [
        (DistributedType.NO, None, "replica", False),
        (DistributedType.MULTI_GPU, None, "replica", False),
        (DistributedType.DEEPSPEED, 2, "deepspeed", False),
        (DistributedType.DEEPSPEED, 3, "deepspeed", True),
        (DistributedType.FSDP, None, "fsdp", True),
    ],
)
def test_a_frozen_model_goes_the_way_of_trls_reference_model(
    monkeypatch, make_model, tiny_tokenizer, kind, stage, way, sharded
):
    import trl.models

    monkeypatch.setattr(trl.models, "prepare_deepspeed", lambda given, accelerator: ("deepspeed", given))
    monkeypatch.setattr(trl.models, "prepare_fsdp", lambda given, accelerator: ("fsdp", given))
    given = make_model()
    frozen = load_frozen(given, tiny_tokenizer)
    accelerator = fake_accelerator(kind, stage)
    frozen.prepare(accelerator)
    assert frozen.model[0] == way and frozen.model[1] is given and frozen.sharded is sharded
    prepared = frozen.model
    frozen.prepare(accelerator)  # the teacher may be the same model
    assert frozen.model is prepared
    assert prepare.is_sharded(accelerator) is sharded


def test_a_sharded_model_is_not_offloaded(make_model, tiny_tokenizer):
    frozen = load_frozen(make_model(), tiny_tokenizer, offload=True)
    with pytest.raises(ValueError, match=r"cannot be offloaded.*verify_offload"):
        frozen.prepare(fake_accelerator(DistributedType.FSDP))


def test_padding_changes_nothing_and_only_the_last_position_goes_through_the_head(make_model, tiny_tokenizer):
    frozen = load_frozen(make_model(), tiny_tokenizer)
    frozen.prepare(Accelerator(cpu=True))
    widths = []
    frozen.model.lm_head.register_forward_hook(lambda module, inputs, output: widths.append(inputs[0].shape[1]))
    texts = ["find a Tomato", "no", "open the Fridge, pick up the Tomato"]
    together = frozen.last_logits(tiny_tokenizer(texts, padding=True, return_tensors="pt"))
    alone = [frozen.last_logits(tiny_tokenizer([text], return_tensors="pt"))[0] for text in texts]
    assert together.dtype == torch.float32 and together.shape == (3, len(tiny_tokenizer))
    torch.testing.assert_close(together, torch.stack(alone), atol=1e-5, rtol=1e-4)
    assert widths == [1, 1, 1, 1]


def test_an_offloaded_model_is_on_its_device_only_while_it_is_used(monkeypatch, make_model, tiny_tokenizer):
    frozen = load_frozen(make_model(), tiny_tokenizer, offload=True)
    moves = []
    monkeypatch.setattr(type(frozen), "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr(frozen.model, "to", lambda place: moves.append(str(place)))
    monkeypatch.setattr(model, "clear_device_cache", lambda: moves.append("cleared"))
    with pytest.raises(KeyError), frozen.in_use():
        moves.append("scoring")
        raise KeyError
    assert moves == ["cuda", "scoring", "cpu", "cleared"]
