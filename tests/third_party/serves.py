"""Run as a process: an engine of vLLM under the other package's score keeps and answers what the
transformers backend does; then what is said of a store that it cannot hold.

    python -m tests.third_party.serves MODEL
"""

from __future__ import annotations

import sys

from transformers import AutoModelForCausalLM

from foveate.errors import UnsupportedPolicy
from tests.serving.engine import engine, prompts, serve
from tests.serving.test_llama import check_against_transformers

SCORE = "value_spread_kv:budget=25%"
STORE = "value_spread_kv+half_kv:budget=25%"


def main(folder: str) -> None:
    with engine(folder, SCORE) as llm:
        served = serve(llm, prompts((300, 135)), tokens=8)
    check_against_transformers(AutoModelForCausalLM.from_pretrained(folder).eval(), SCORE, served)
    for answer in served.answers:
        kept = answer.kept[0].shape[-1]
        print(f"served: {kept / len(answer.prompt):.0%} kept")
    try:
        with engine(folder, STORE):
            pass
    except UnsupportedPolicy as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
