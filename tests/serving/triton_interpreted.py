"""vLLM's TRITON_ATTN kernels, and Foveate around them, in Triton's interpreter. A process of its
own, as vLLM decides on Triton when it is first imported. Prints what was answered.

    python -m tests.serving.triton_interpreted [--codes] MODEL POLICY...

With ``--codes``, caches hold FP8.
"""

import contextlib
import importlib
import json
import os
import sys
from types import SimpleNamespace
from unittest import mock

LENGTHS = (41, 30)


def interpreted(second=False):
    """Makes vLLM take Triton for usable: it asks for a device that runs it. ``second`` says which
    of its model runners is to serve.
    """
    runner = str(int(second))
    os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": runner}
    import torch
    import triton.backends

    driver = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    # vLLM's build for CPUs wants a driver "cpu"; any other build wants one of another name
    named = dict.fromkeys(("cpu", "interpreter"), driver)
    triton.backends.backends |= named
    importlib.import_module("vllm.triton_utils")
    for name in named:  # nobody else is to take it for a compiler
        del triton.backends.backends[name]
    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # asked for a tile size


@contextlib.contextmanager
def reading_codes():
    """Whoever asks is told of a device that reads FP8, and numbers are coded as there: the
    interpreter loses what is carried into the exponent, and makes -4 of -7.95.
    """
    import torch
    from triton import language
    from triton.runtime import interpreter
    from vllm.platforms import current_platform

    from tests.serving.codes import coded, scaled

    plain = interpreter._convert_float

    def converted(given, source, target, rounding):
        if (source, target) != (language.float32, language.float8e4nv):
            return plain(given, source, target, rounding)
        return coded(torch.from_numpy(given), 1.0).view(torch.uint8).numpy()

    able = mock.patch.object(current_platform, "has_device_capability", return_value=True)
    with able, scaled(), mock.patch.object(interpreter, "_convert_float", converted):
        yield {"kv_cache_dtype": "fp8"}


def answers(model, policy, codes=False):
    """Of stock TRITON_ATTN where there is no policy."""
    from vllm.v1.attention import selector

    from foveate.vllm.vllm_api import triton_attention
    from foveate.vllm.worker.gpu import FoveateTriton
    from tests.serving.engine import engine, prompts, serve

    backend = FoveateTriton if policy else triton_attention().backend
    chosen = mock.patch.object(selector, "_cached_get_attn_backend", return_value=backend)
    sizes = {"block_size": 16, "max_model_len": 128, "num_gpu_blocks_override": 24}
    kind = reading_codes() if codes else contextlib.nullcontext({})
    with chosen, kind as options, engine(model, policy, **sizes, **options) as llm:
        served = serve(llm, prompts(LENGTHS), tokens=3)
    kept = {
        f"{name},{place}": positions.tolist() for (name, place), positions in served.kept.items()
    }
    return {
        "tokens": [answer.tokens for answer in served.answers],
        "logprobs": [answer.logprobs.tolist() for answer in served.answers],
        "kept": kept,
        "free": served.free,
    }


if __name__ == "__main__":
    interpreted()
    coded = "--codes" in sys.argv
    model, *policies = [one for one in sys.argv[1:] if one != "--codes"]
    found = [answers(model, policy or None, coded) for policy in policies]
    print(json.dumps(found))
