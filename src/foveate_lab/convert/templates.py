"""Chat templates that reproduce the prompts of the authors' code."""

from __future__ import annotations

_VICUNA = """\
{{- "A chat between a curious user and an artificial intelligence assistant. The assistant gives \
helpful, detailed, and polite answers to the user's questions. " -}}
{%- for message in messages -%}
{{- "USER: " if message.role == "user" else "ASSISTANT: " -}}
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- for part in message.content -%}
{{- "<image>\\n" if part.type == "image" else part.text -}}
{%- endfor -%}
{%- endif -%}
{{- " " if message.role == "user" else "</s>" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "ASSISTANT:" -}}{%- endif -%}
"""

_CHATML = """\
{{- "<|im_start|>system\\nSYSTEM<|im_end|>BREAK" -}}
{%- for message in messages -%}
{{- "<|im_start|>" + message.role + "\\n" -}}
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- for part in message.content -%}
{{- "<image>\\n" if part.type == "image" else part.text -}}
{%- endfor -%}
{%- endif -%}
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
# The system prompt of internlm2-chat: "You are InternVL, a multimodal model ..."
_INTERN = (
    "\u4f60\u662f\u7531\u4e0a\u6d77\u4eba\u5de5\u667a\u80fd\u5b9e\u9a8c\u5ba4\u8054\u5408\u5546"
    "\u6c64\u79d1\u6280\u5f00\u53d1\u7684\u4e66\u751f\u591a\u6a21\u6001\u5927\u6a21\u578b\uff0c"
    "\u82f1\u6587\u540d\u53ebInternVL, \u662f\u4e00\u4e2a\u6709\u7528\u65e0\u5bb3\u7684\u4eba\u5de5"
    "\u667a\u80fd\u52a9\u624b\u3002"
)


def vicuna(image_token: str) -> str:
    """Return the template of Vicuna 1.1 for LLaVA-1.5 and MobileVLM (``v1`` in conversation.py)."""
    return _VICUNA.replace("<image>", image_token)


def intern(image_token: str) -> str:
    """Return ChatML without line breaks between turns.

    This is ``internlm2-chat`` in InternVL's conversation.py.
    """
    template = _CHATML.replace("SYSTEM", _INTERN).replace("BREAK", "")
    return template.replace("<image>", image_token)


def qwen(chat: bool) -> str:
    """Return a template with numbered images, in ChatML if ``chat``, else as plain text."""
    template = _NUMBERED
    for name, text in _QWEN_PARTS.items():
        template = template.replace(f"{name}\n", f"{text}\n" if chat else "")
    return template
