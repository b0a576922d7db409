"""GPT-4 judge: grades MM-Vet's and MathVista's answers through OpenAI's client.

Needs ``pip install openai`` and the variable OPENAI_API_KEY; every graded answer is paid. Run it as

    PYTHONPATH=examples foveate reproduce david:table2 --data DATA --judge gpt4_judge:ask

OPENAI_BASE_URL takes any other server of the same API, and JUDGE_MODEL another model.
"""

import os
from functools import cache

from openai import OpenAI

MODEL = os.environ.get("JUDGE_MODEL", "gpt-4-0613")


@cache
def client() -> OpenAI:
    """Return the client, which asks again when the server is busy."""
    return OpenAI(max_retries=5, timeout=60)


def ask(prompt: str) -> str:
    """Return the judge's reply to a prompt."""
    reply = client().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": prompt}], temperature=0.0
    )
    return reply.choices[0].message.content or ""
