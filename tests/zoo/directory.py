"""Model directories that the auto classes load offline."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import CLIPImageProcessorPil, LlavaProcessor, TokenizersBackend

from .catalogue import fresh
from .family import IMAGE, PAD, TEXT_FROM, VOCAB

IMAGE_SIZE = 12
PATCH = 4

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- message['role'] + ' : ' -}}
{%- if message['content'] is string -%}
{{- message['content'] + '\\n' -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '<image>' -}}{%- else -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}
{{- '\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'assistant : ' -}}{%- endif -%}
"""


def tokenizer() -> TokenizersBackend:
    """A byte-level tokenizer over printable ASCII and the newline, as ids of the tiny vocabulary.

    One character is one token; other bytes become ``<unk>``. Ids that no character has decode to
    ``[id]``, so that any answer of a random model decodes to something.
    """
    special = {PAD: "<pad>", 1: "<s>", 2: "<unk>", IMAGE: "<image>"}
    letters = [_byte(code) for code in (*range(32, 127), 10)]
    names = special | {TEXT_FROM + index: letter for index, letter in enumerate(letters)}
    vocabulary = {names.get(index, f"[{index}]"): index for index in range(VOCAB)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special.values()))
    return TokenizersBackend(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
        padding_side="left",
    )


def save_llava(path: Path | str) -> Path:
    """Saves the tiny LLaVA with its processor.

    ``AutoModelForImageTextToText`` and ``AutoProcessor`` load it, chat template included; an image
    of any size becomes 9 tokens.
    """
    path = Path(path)
    fresh("llava").save_pretrained(path)
    llava_processor().save_pretrained(path)
    return path


def llava_processor() -> LlavaProcessor:
    """The processor of the tiny LLaVA: it crops images as LLaVA-1.5's does."""
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": IMAGE_SIZE},
            crop_size={"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        ),
        tokenizer=tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )


def save_llama(path: Path | str) -> Path:
    """Saves the tiny Llama with its tokenizer and a chat template."""
    path = Path(path)
    words = tokenizer()
    words.chat_template = CHAT_TEMPLATE
    fresh("llama").save_pretrained(path)
    words.save_pretrained(path)
    return path


def _byte(code: int) -> str:
    """The character that stands for a byte in byte-level vocabularies."""
    return {32: "\u0120", 10: "\u010a"}.get(code, chr(code))
