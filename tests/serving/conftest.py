"""Tests of the worker inside vLLM itself, which has an environment of its own: `make test-vllm`."""

import importlib.util
import os
from pathlib import Path

import pytest

SITE = Path(__file__).parent / "site"
HERE = importlib.util.find_spec("vllm") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]

if HERE:  # one process and one thread, nothing measured at the start and nothing reported to anyone
    # numba would give all OpenMP libraries as many threads as it has; see constant_threads
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_CI_ENV": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")])),
    }
    import tests.serving.site.sitecustomize  # noqa: F401 - in this process, too


@pytest.fixture(autouse=True)
def constant_threads():
    """Fail a test that changes the number of OpenMP threads.

    vLLM packs weights for that number, but its cache of oneDNN primitives knows weights by shape
    and type alone (``ClassMatmulCacheKey`` in vLLM's csrc/cpu/dnnl_helper.cpp), and belongs to the
    process. After a change, later engines read their weights in the layout of earlier ones.
    """
    import torch

    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


@pytest.fixture(scope="session")
def llama_of_four_layers(tmp_path_factory):
    """The folder of a tiny random Llama: 4 layers, 4 query heads, 2 KV heads."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).float().eval().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def llama(llama_of_four_layers):
    """The Llama of a file's tests; some have one of their own."""
    return llama_of_four_layers


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """By name, the folder of a tiny random model of ``tests.serving.tiny``, or ``tiny_text``; each
    is made once.
    """
    from tests.serving import tiny, tiny_text

    made = {}

    def folder(name):
        if name not in made:
            build = getattr(tiny, name, None) or getattr(tiny_text, name)
            made[name] = build(tmp_path_factory.mktemp(name))
        return made[name]

    return folder


@pytest.fixture(scope="module")
def model(llama):
    """The model of the folder ``llama``, in transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(llama).eval()


@pytest.fixture
def numba():
    """vLLM looks into all modules for kernels when an engine is made, and fails at the library of
    numba, which drafts import: no second engine would start in this process.
    """
    from llvmlite.binding import ffi

    plain = ffi._lib_wrapper.__getattr__

    def found(self, name):
        if name == "__dict__":
            raise AttributeError(name)
        return plain(self, name)

    ffi._lib_wrapper.__getattr__ = found  # for all engines that follow
