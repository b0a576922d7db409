"""What is relied on of vLLM on a GPU, as far as it can be read where there is none."""

import ast
import dataclasses
import inspect
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from foveate.errors import UnsupportedEngine
from foveate.vllm import vllm_api
from foveate.vllm.scheduler.blocks import check_specs
from foveate.vllm.startup import registration
from foveate.vllm.worker import pages

STOCK = {"FLASH_ATTN": vllm_api.flash_attention, "TRITON_ATTN": vllm_api.triton_attention}


def parameters(function):
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", STOCK)
def test_backends_are_made_of_these_parts(name):
    stock = STOCK[name]()
    assert stock.backend.get_name() == name
    assert stock.backend.get_impl_cls() is stock.implementation
    assert stock.backend.get_builder_cls() is stock.builder
    assert stock.backend.forward_includes_kv_cache_update is False
    assert parameters(stock.builder.build) == [
        "self",
        "common_prefix_len",
        "common_attn_metadata",
        "fast_build",
    ]
    assert parameters(stock.implementation.forward)[:8] == [
        "self",
        "layer",
        "query",
        "key",
        "value",
        "kv_cache",
        "attn_metadata",
        "output",
    ]
    assert parameters(stock.builder.get_cudagraph_support) == ["vllm_config", "kv_cache_spec"]


@pytest.mark.parametrize("name", STOCK)
def test_ours_stand_for_them_under_their_names(name):
    from vllm.utils.import_utils import resolve_obj_by_qualname

    ours = resolve_obj_by_qualname(registration.CUDA.backends[name])
    assert issubclass(ours, STOCK[name]().backend)
    assert ours.get_name() == name
    assert vllm_api.AttentionBackendEnum[name].name == name


@pytest.mark.parametrize("name", STOCK)
def test_pairs_stand_side_by_side_in_pages(name):
    """vLLM's own code says where: [p, h, s, 2 d], split in the last axis."""
    stock = STOCK[name]().implementation
    for method in (stock.forward, stock.do_kv_cache_update):
        text = inspect.getsource(method).replace("\n", " ")
        assert "kv_cache.transpose(1, 2)" in text
        assert "split(" in text
        assert "dim=-1" in text


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"])
def test_pages_are_read_and_written_in_vllms_own_views(layout):
    """A pool as vLLM allocates it, in each of its layouts; a neighbouring layer stays as it is."""
    from vllm.v1.kv_cache_interface import (
        KVCacheTensor,
        compute_layout_strides,
        create_kv_cache_views,
    )
    from vllm.v1.kv_cache_layout import KVCacheLayout

    spec = vllm_api.FullAttentionSpec(
        block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32
    )
    layers, count = ["a", "b"], 6
    strides = compute_layout_strides(spec, count, len(layers), KVCacheLayout[layout])
    size = count * len(layers) * spec.page_size_bytes
    given = {
        "size": size,
        "layers": layers,
        "shared_by": layers,
        "offset": 0,
        "layer_stride": strides[0],
        "block_stride": strides[1],
    }
    names = {field.name for field in dataclasses.fields(KVCacheTensor) if field.init}
    tensor = KVCacheTensor(**{name: value for name, value in given.items() if name in names})
    raw = torch.zeros(size, dtype=torch.int8)
    first, second = create_kv_cache_views(raw, spec, count, KVCacheLayout[layout], tensor)
    assert first.shape == (count, 2, 16, 16)
    k, v = torch.randn(2, 37, 2, 8)
    row = torch.tensor([4, 1, 3, 0], dtype=torch.int32)
    slots = row.long()[torch.arange(37) // 16] * 16 + torch.arange(37) % 16
    pages.write(first, None, k, v, slots)
    for written, read in zip((k, v), pages.read(first, row, 37), strict=True):
        assert torch.equal(read[0].transpose(0, 1), written)
    keys, values = first.transpose(1, 2).split(8, dim=-1)  # as both backends do
    assert torch.equal(keys[slots // 16, slots % 16], k)
    assert torch.equal(values[slots // 16, slots % 16], v)
    assert not second.any()


def test_common_metadata_says_lengths_on_the_cpu():
    names = {field.name for field in dataclasses.fields(vllm_api.CommonAttentionMetadata)}
    assert names >= {"seq_lens_cpu_upper_bound", "mm_req_doc_ranges", "_num_computed_tokens_cache"}


def calls(module, name):
    """Keyword arguments of each call of that name."""
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call):
            called = node.func
            last = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if last == name:
                found.append({keyword.arg for keyword in node.keywords})
    return found


def test_the_runner_gives_lengths_and_asks_its_dispatcher():
    from vllm.v1.worker import gpu_model_runner

    made = calls(gpu_model_runner, "CommonAttentionMetadata")
    assert made
    assert all("seq_lens_cpu_upper_bound" in one for one in made)
    assert any("invalid_modes" in one for one in calls(gpu_model_runner, "dispatch"))
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    assert "invalid_modes" in parameters(CudagraphDispatcher.dispatch)
    assert vllm_api.CUDAGraphMode.FULL in vllm_api.CUDAGraphMode.valid_runtime_modes()


def test_workers_have_these_methods():
    for worker in (vllm_api.gpu_worker_class(), vllm_api.cpu_worker_class()):
        assert parameters(worker.execute_model)[:2] == ["self", "scheduler_output"]
        assert parameters(worker.initialize_from_config) == ["self", "kv_cache_config"]
        assert parameters(worker.get_kv_cache_spec) == ["self"]


def platform(**true):
    asked = {name: lambda: False for name in ("is_cpu", "is_cuda")}
    return (
        SimpleNamespace(**asked, device_name="rocm")
        if not true
        else SimpleNamespace(**(asked | {name: lambda: True for name in true}), device_name="")
    )


def test_platforms_are_chosen_by_name():
    assert registration.served(platform(is_cpu=True)) is registration.CPU
    assert registration.served(platform(is_cuda=True)) is registration.CUDA
    assert registration.CUDA.worker() is vllm_api.gpu_worker_class()
    with pytest.raises(UnsupportedEngine, match=r"NVIDIA.*'rocm'"):
        registration.served(platform())


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_quant_mode": vllm_api.KVQuantMode(1)},
        {"head_size_v": 16},
        {"state_content_bytes": 80},
    ],
)
def test_layers_with_other_things_in_their_pages_are_refused(changes):
    plain = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": torch.float32}
    check_specs({"a": vllm_api.FullAttentionSpec(**plain)})
    with pytest.raises(UnsupportedEngine, match="layer a"):
        check_specs({"a": vllm_api.FullAttentionSpec(**plain | changes)})


POLICIES = [
    "snapkv:budget=25%,window=8",
    "h2o:budget=25%",
    "mixkv:budget=25%,window=8",
    "csp:budget=25%",
    "lookm:budget=25%",
    "knorm:budget=40",
    "david:budget=25%",
]


def test_nothing_of_the_cpus_is_mixed_into_the_gpus():
    """On a GPU that is pretended; and while metadata is built, nobody waits for it."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.serving.gpu_pretended", *POLICIES],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    for told in json.loads(run.stdout.splitlines()[-1]).values():
        assert all(told["same"])
        assert told["compressed"]
        assert told["waits"] == 0
