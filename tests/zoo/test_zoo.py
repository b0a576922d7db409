"""The catalogue is what conformance tests take it for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import PIL.Image
import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    DynamicCache,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.answers import DRAWN
from tests.jitter import WIDER, other_side

BATCH = (23, 31, 40)

pytestmark = pytest.mark.filterwarnings("ignore")


def logits(model: PreTrainedModel, inputs: zoo.Inputs) -> Tensor:
    """Last-token logits of a forward pass."""
    with torch.no_grad():
        output: CausalLMOutputWithPast = model(**inputs)
    assert output.logits is not None
    return output.logits[:, -1]


def positions(model: PreTrainedModel, inputs: zoo.Inputs) -> Tensor:
    """Positions of a Qwen-VL prompt: time, height and width."""
    keys = ("input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")
    base: Any = model.model
    found: Tensor = base.get_rope_index(**{key: inputs[key] for key in keys})[0]
    return found


def generate(
    model: PreTrainedModel, inputs: zoo.Inputs, tokens: int = 4, cache: DynamicCache | None = None
) -> tuple[Tensor, Tensor]:
    """New tokens, drawn, and the raw logits of each step, ``[steps, rows, vocabulary]``."""
    extra = {} if cache is None else {CACHE: cache}
    runner: Any = model
    result = runner.generate(
        **inputs,
        **extra,
        max_new_tokens=tokens,
        do_sample=False,
        logits_processor=DRAWN,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return result.sequences[:, inputs["input_ids"].shape[1] :], torch.stack(result.logits)


@pytest.mark.parametrize("name", zoo.FAMILIES)
class TestFamily:
    """Every family, alone, in a batch and over two turns."""

    def test_is_reproducible(self, name: str) -> None:
        """Two builds and two draws are equal; the model is ready for inference in float32."""
        model, again = zoo.build(name), zoo.fresh(name)
        assert not model.training
        assert model.dtype == torch.float32
        for key, value in model.state_dict().items():
            assert torch.equal(value, again.state_dict()[key]), key
        first, second = (zoo.prompt(name, lengths=BATCH, seed=3) for _ in range(2))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)

    @pytest.mark.parametrize("lengths", [(40,), BATCH], ids=["alone", "padded"])
    def test_runs(self, name: str, lengths: tuple[int, ...]) -> None:
        """Forward and greedy generation work, and agree on the first token."""
        model, inputs = zoo.build(name), zoo.prompt(name, lengths=lengths)
        assert inputs["attention_mask"].sum(-1).tolist() == list(lengths)
        direct = logits(model, inputs)
        assert direct.isfinite().all()
        tokens, steps = generate(model, inputs)
        assert tokens.shape == (len(lengths), 4)
        head = model.get_submodule("lm_head").get_parameter("weight")
        if head is not model.get_input_embeddings().get_parameter("weight"):  # else by luck
            assert (steps.argmax(-1) >= zoo.TEXT_FROM).all()
        torch.testing.assert_close(steps[0], direct, atol=1e-4 + WIDER, rtol=0)

    @pytest.mark.parametrize("images", [None, 0], ids=["usual", "text only"])
    def test_padding_changes_nothing(self, name: str, images: int | None) -> None:
        """A padded row decodes as it does alone."""
        model, inputs = zoo.build(name), zoo.prompt(name, lengths=BATCH, images=images)
        _, steps = generate(model, inputs)
        for index in range(len(BATCH)):
            alone = zoo.row(name, inputs, index)
            assert alone["attention_mask"].all()
            torch.testing.assert_close(
                logits(model, alone), steps[0, index, None], atol=1e-4 + WIDER, rtol=0
            )
            with other_side():
                _, own_steps = generate(model, alone)
            torch.testing.assert_close(own_steps[:, 0], steps[:, index], atol=1e-4 + WIDER, rtol=0)

    def test_mask_matters(self, name: str) -> None:
        """Hiding a few text tokens in the middle changes what comes out."""
        model, inputs = zoo.build(name), zoo.prompt(name)
        hidden = {**inputs, "attention_mask": inputs["attention_mask"].clone()}
        hidden["attention_mask"][:, -8:-3] = 0
        if "mm_token_type_ids" in inputs:  # keep positions: only the mask is to differ
            hidden["position_ids"] = positions(model, inputs)
            inputs = {**inputs, "position_ids": hidden["position_ids"]}
        assert (logits(model, hidden) - logits(model, inputs)).abs().max() > 0.1

    def test_attention_is_not_flat(self, name: str) -> None:
        """Attention singles tokens out, in every layer."""
        model = zoo.fresh(name)
        model.set_attn_implementation("eager")
        inputs = zoo.prompt(name)
        with torch.no_grad():
            layers = model(**inputs, output_attentions=True).attentions
        assert len(layers) == model.config.get_text_config().num_hidden_layers
        for weights in layers:
            peaks = weights[0, :, -1].max(-1).values
            assert peaks.mean() > 3 / weights.shape[-1]


def turn(name: str, images: int) -> ParameterSet:
    """A case of `test_second_turn`."""
    limit = zoo.second_turn_limit(name, images)
    marks = () if limit is None else (pytest.mark.xfail(reason=limit, strict=False),)
    return pytest.param(name, images, id=f"{name}-{images} image(s)", marks=marks)


TURNS = [turn(name, 0) for name in zoo.FAMILIES] + [turn(name, 1) for name in zoo.VLM_FAMILIES]


@pytest.mark.parametrize(("name", "images"), TURNS)
@pytest.mark.parametrize("lengths", [(40,), BATCH], ids=["alone", "padded"])
def test_second_turn(name: str, images: int, lengths: tuple[int, ...]) -> None:
    """A second turn on a stock cache equals computing it all, and goes on as it does."""
    model, inputs = zoo.build(name), zoo.prompt(name, lengths=lengths)
    cache = DynamicCache(config=model.config)
    answer, _ = generate(model, inputs, cache=cache)
    later = zoo.extend(name, zoo.append(name, inputs, answer), new_text=9, images=images)
    # Something else runs in between: nothing of it may be left in the model.
    generate(model, zoo.prompt(name, lengths=(33,) * len(lengths), seed=9))
    _, steps = generate(model, later.cached, cache=cache)
    with other_side():
        _, expected = generate(model, later.full)
    torch.testing.assert_close(steps, expected, atol=1e-4 + WIDER, rtol=0)


@pytest.mark.parametrize("name", zoo.VLM_FAMILIES)
class TestImages:
    """Images of vision-language families."""

    def test_two_images(self, name: str) -> None:
        """Other pixels change what is computed in every row."""
        model, inputs = zoo.build(name), zoo.prompt(name, lengths=(60, 50), images=2)
        base = logits(model, inputs)
        other = zoo.prompt(name, lengths=(60, 50), images=2, seed=1)
        assert inputs["pixel_values"].shape == other["pixel_values"].shape
        changed = logits(model, {**inputs, "pixel_values": other["pixel_values"]})
        assert (changed - base).abs().amax(-1).min() > 1e-2

    def test_row_keeps_its_images(self, name: str) -> None:
        """A row taken out of a batch has its own images."""
        inputs = zoo.prompt(name, lengths=(60, 50), images=2)
        _, steps = generate(zoo.build(name), inputs)
        for index in range(2):
            with other_side():
                _, alone = generate(zoo.build(name), zoo.row(name, inputs, index))
            torch.testing.assert_close(alone[:, 0], steps[:, index], atol=1e-4 + WIDER, rtol=0)


def test_refused_families_build() -> None:
    """What must be refused can be built."""
    for name in zoo.REFUSED_FAMILIES:
        assert generate(zoo.build(name), zoo.prompt(name))[0].shape == (1, 4)


def test_impossible_prompts() -> None:
    """Rows without room for their images and images for text families are errors."""
    with pytest.raises(ValueError, match="too few"):
        zoo.prompt("llava", lengths=(9,))
    with pytest.raises(ValueError, match="no images"):
        zoo.prompt("llama", images=1)


def test_llava_directory(tmp_path: Path) -> None:
    """A saved LLaVA loads with its processor and answers a chat about images."""
    path = zoo.save_llava(tmp_path / "llava")
    processor = AutoProcessor.from_pretrained(path)
    model: Any = AutoModelForImageTextToText.from_pretrained(path)
    pixels = [numpy.full((30, 40, 3), shade, dtype=numpy.uint8) for shade in (20, 200)]
    words = {"type": "text", "text": "What is this, then?"}
    chats = [
        [
            {
                "role": "user",
                "content": [{"type": "image", "image": PIL.Image.fromarray(each)}, words],
            }
        ]
        for each in pixels
    ]
    chats[1].append({"role": "assistant", "content": [{"type": "text", "text": "No idea."}]})
    chats[1].append({"role": "user", "content": [words]})
    inputs = processor.apply_chat_template(
        chats,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"padding": True},
    )
    assert (inputs["input_ids"] == zoo.IMAGE).sum(-1).tolist() == [9, 9]
    assert inputs["input_ids"][0, 0] == zoo.PAD
    answer = model.generate(**inputs, max_new_tokens=4)[:, inputs["input_ids"].shape[1] :]
    assert answer.shape == (2, 4)
    assert all(processor.batch_decode(answer))
    shown = processor.decode(inputs["input_ids"][1], skip_special_tokens=True)
    assert shown.endswith("user : What is this, then?\nassistant : ")


def test_llama_directory(tmp_path: Path) -> None:
    """A saved Llama loads with its tokenizer and chat template."""
    path = zoo.save_llama(tmp_path / "llama")
    words: Any = AutoTokenizer.from_pretrained(path)
    model: Any = AutoModelForCausalLM.from_pretrained(path)
    text = "Hello, you {there}! ~ 12"
    assert words.decode(words(text)["input_ids"]) == text
    chat = [{"role": "user", "content": text}]
    inputs = words.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    expected = f"user : {text}\nassistant : "
    assert words.decode(inputs["input_ids"][0]) == expected
    assert model.generate(**inputs, max_new_tokens=4).shape[1] == len(expected) + 4
