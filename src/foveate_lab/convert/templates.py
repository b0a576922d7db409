"""Chat templates that reproduce the prompts of the authors' code."""

from __future__ import annotations

_PARTS = """\
{%- set seen = namespace(text=false) -%}
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- for part in message.content -%}
{%- if part.type == "image" -%}
{{- "<image>" -}}
{%- set next = loop.nextitem.text if loop.nextitem is defined else "" -%}
{%- if not seen.text and (next or "")[:1] != "\\n" -%}{{- "\\n" -}}{%- endif -%}
{%- else -%}
{%- set seen.text = true -%}{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
"""
# An image in front of all text stands on a line of its own, as in LLaVA's and InternVL's code; in
# and behind a text it stands where it is placed, with nothing beside it.

_VICUNA = """\
{{- "SYSTEM " -}}
{%- for message in messages -%}
{{- "USER: " if message.role == "user" else "ASSISTANT: " -}}
PARTS
{{- " " if message.role == "user" else "</s>" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "ASSISTANT:" -}}{%- endif -%}
"""

_LLAMA_2 = """\
{%- for message in messages -%}
{%- if message.role == "user" -%}
{{- "[INST] " if loop.first else "BETWEEN[INST] " -}}
{%- if loop.first -%}{{- "SYSTEM" -}}{%- endif -%}
PARTS
{{- " [/INST]" -}}
{%- else -%}
{{- " " -}}
PARTS
{{- " </s>" -}}
{%- endif -%}
{%- endfor -%}
"""

_VLMEVALKIT = """\
{{- "SYSTEM " -}}
{%- for message in messages -%}
{{- "USER: " if message.role == "user" else "ASSISTANT: " -}}
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- for part in message.content -%}
{{- " <image> " if part.type == "image" else part.text -}}
{%- endfor -%}
{%- endif -%}
{{- " " if message.role == "user" else "</s>" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "ASSISTANT: " -}}{%- endif -%}
"""

_CHATML = """\
{{- "<|im_start|>system\\nSYSTEM<|im_end|>BREAK" -}}
{%- for message in messages -%}
{{- "<|im_start|>" + message.role + "\\n" -}}
PARTS
{{- "<|im_end|>BREAK" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""

_NUMBERED = """\
{%- set seen = namespace(images=0) -%}
START
{%- for message in messages -%}
OPEN
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- for part in message.content -%}
{%- if part.type == "image" -%}
{%- set seen.images = seen.images + 1 -%}
{{- "Picture " ~ seen.images ~ ": <imgpad>\\n" -}}
{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
CLOSE
{%- endfor -%}
END
"""
_QWEN_PARTS = {
    "START": '{{- "<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n" -}}',
    "OPEN": '{{- "<|im_start|>" + message.role + "\\n" -}}',
    "CLOSE": '{{- "<|im_end|>\\n" -}}',
    "END": '{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}',
}
# The system prompt of vicuna_v1 (OTHER: user) and llava_v1 (human).
_VICUNA_SYSTEM = (
    "A chat between a curious OTHER and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the OTHER's questions."
)
_LLAVA_LLAMA_2_SYSTEM = (
    "You are a helpful language and vision assistant. You are able to understand the visual "
    "content that the user provides, and assist the user with a variety of tasks using natural "
    "language."
)
# The system prompt of internlm2-chat: "You are InternVL, a multimodal model ..."
_INTERN = (
    "\u4f60\u662f\u7531\u4e0a\u6d77\u4eba\u5de5\u667a\u80fd\u5b9e\u9a8c\u5ba4\u8054\u5408\u5546"
    "\u6c64\u79d1\u6280\u5f00\u53d1\u7684\u4e66\u751f\u591a\u6a21\u6001\u5927\u6a21\u578b\uff0c"
    "\u82f1\u6587\u540d\u53ebInternVL, \u662f\u4e00\u4e2a\u6709\u7528\u65e0\u5bb3\u7684\u4eba\u5de5"
    "\u667a\u80fd\u52a9\u624b\u3002"
)
_INTERN_2_5 = (
    "\u4f60\u662f\u4e66\u751f\u00b7\u4e07\u8c61\uff0c\u82f1\u6587\u540d\u662fInternVL\uff0c\u662f\u7531"
    "\u4e0a\u6d77\u4eba\u5de5\u667a\u80fd\u5b9e\u9a8c\u5ba4\u3001\u6e05\u534e\u5927\u5b66\u53ca\u591a\u5bb6"
    "\u5408\u4f5c\u5355\u4f4d\u8054\u5408\u5f00\u53d1\u7684\u591a\u6a21\u6001\u5927\u8bed\u8a00\u6a21\u578b"
    "\u3002"
)
_INTERN_LLAVA = "You are an AI assistant whose name is InternLM (\u4e66\u751f\u00b7\u6d66\u8bed)."


def vicuna(image_token: str) -> str:
    """Return Vicuna 1.1's template, of LLaVA-1.5 and MobileVLM (``vicuna_v1`` and ``v1`` in their
    conversation.py).
    """
    return _filled(_VICUNA, image_token, _VICUNA_SYSTEM.replace("OTHER", "user"))


def llava_v1(image_token: str) -> str:
    """Return Vicuna's template with "a curious human" (``llava_v1`` in LLaVA's conversation.py)."""
    return _filled(_VICUNA, image_token, _VICUNA_SYSTEM.replace("OTHER", "human"))


def llava_llama_2(image_token: str) -> str:
    """Return LLaVA's template for Llama 2 (``llava_llama_2`` in LLaVA's conversation.py)."""
    system = f"<<SYS>>\\n{_LLAVA_LLAMA_2_SYSTEM}\\n<</SYS>>\\n\\n"
    return _filled(_LLAMA_2.replace("BETWEEN", "<s>"), image_token, system)


def mistral_instruct(image_token: str) -> str:
    """Return Mistral's template (``mistral_instruct`` in LLaVA's conversation.py)."""
    return _filled(_LLAMA_2.replace("BETWEEN", ""), image_token, "")


def vlmevalkit_llava(image_token: str) -> str:
    """Return VLMEvalKit's template for LLaVA-1.5: a space around each image, and one at the end
    (vlmeval/vlm/llava/llava.py).
    """
    return _filled(_VLMEVALKIT, image_token, _VICUNA_SYSTEM.replace("OTHER", "human"))


def intern(image_token: str) -> str:
    """Return ChatML with no line break between turns (``internlm2-chat`` in InternVL's
    conversation.py).
    """
    return _filled(_CHATML.replace("BREAK", ""), image_token, _INTERN)


def intern_llava(image_token: str) -> str:
    """Return the same template with another system prompt (``internlm2-chat`` in the
    conversation.py of InternVL's internvl_chat_llava).
    """
    return _filled(_CHATML.replace("BREAK", ""), image_token, _INTERN_LLAVA)


def intern_2_5(image_token: str) -> str:
    """Return ChatML with a system prompt (``internvl2_5`` in InternVL's conversation.py)."""
    return _filled(_CHATML.replace("BREAK", "\\n"), image_token, _INTERN_2_5)


def _filled(template: str, image_token: str, system: str) -> str:
    """Return a template with its system prompt, the parts of a message and the image token."""
    filled = template.replace("PARTS\n", _PARTS).replace("SYSTEM", system)
    return filled.replace("<image>", image_token)


def qwen(chat: bool) -> str:
    """Return a template with numbered images, in ChatML if ``chat``, else as plain text."""
    template = _NUMBERED
    for name, text in _QWEN_PARTS.items():
        template = template.replace(f"{name}\n", f"{text}\n" if chat else "")
    return template
