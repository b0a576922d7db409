"""The demo model, which can read, served by vLLM: it answers as under transformers."""

from random import Random

import pytest

from foveate_demo import album, questions, vision
from foveate_demo.processor import worded
from foveate_lab.eval.tasks.drawn import FONTS
from tests.serving import demo_model, expected
from tests.serving.engine import engine, serve

POLICY, TOKENS = "mixkv:budget=25%", 8
OPTIONS = {
    "skip_tokenizer_init": False,
    "limit_mm_per_prompt": {"image": 3},
    "max_logprobs": 5,
    "kv_cache_memory_bytes": 256 << 20,
    "hf_overrides": {"architectures": ["FoveateDemo"]},
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The model, its processor, and the folder that they are saved in."""
    demo_model.register()
    model, processor = vision.load()
    folder = str(tmp_path_factory.mktemp("demo"))
    model.config.text_config.architectures = ["LlamaForCausalLM"]
    model.save_pretrained(folder)
    processor.tokenizer.save_pretrained(folder)
    return model, processor, folder


def asked():
    """Images, a question, and what the answer has to hold: a form, a chart, and three pages."""
    for kind, seed in (("document", 3), ("chart", 1)):
        drawn = questions.KINDS[kind](Random(seed), FONTS)
        one = drawn.questions[0]
        yield [page.image for page in drawn.images], one.question, one.value
    yield album.images(), album.QUESTION, "2 November"


def test_the_demo_model_answers_as_under_transformers(demo):
    model, processor, folder = demo
    given, wanted, values = [], [], []
    for images, question, value in asked():
        parts = [
            *({"type": "image", "image": image} for image in images),
            {"type": "text", "text": question},
        ]
        text, _ = worded([{"role": "user", "content": parts}])
        given.append(demo_model.asked(text, images))
        inputs = processor(images=images, text=text)
        wanted.append(expected.answer(model, inputs, POLICY, TOKENS))
        values.append(value)
    with engine(folder, POLICY, **OPTIONS) as llm:
        served = serve(llm, given, TOKENS, logprobs=5)
    expected.check(served, wanted)
    for answer, value in zip(served.answers, values, strict=True):
        assert value in processor.decode(answer.tokens)
