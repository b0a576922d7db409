"""A GPU that is not there: tensors that say they lie on one, and hold their numbers on the CPU.

Whoever mixes them with the CPU's is told, as a GPU would; so code that is to run on a GPU can be
held to that where there is none. ``copies`` counts what is fetched from it, each of which would
wait for it.
"""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("pretended")  # for good: only in a process of its own
GPU = torch.device("pretended:0")  # CUDA itself would be looked for
ATEN = torch.ops.aten
COPY = {ATEN._to_copy.default, ATEN.copy_.default}
INDEXED = {ATEN.index.Tensor, ATEN.index_put_.default, ATEN.index_put.default}


class OnGPU(torch.Tensor):
    """A tensor of the GPU; ``held`` is where its numbers are."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=GPU,
        )

    def __init__(self, held):
        self.held = held

    def tolist(self):
        return self.held.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function} outside of the pretended GPU")


def held(tree):
    return tree_map(lambda t: t.held if isinstance(t, OnGPU) else t, tree)


def tensors(tree):
    found = []
    tree_map(lambda t: found.append(t) if isinstance(t, torch.Tensor) else None, tree)
    return found


class PretendedGPU(TorchDispatchMode):
    copies = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        given = tensors((args, kwargs))
        there = [t for t in given if isinstance(t, OnGPU)]
        asked = kwargs.get("device")
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
            to_gpu = torch.device(asked).type == GPU.type
        else:
            to_gpu = bool(there)
        if there and function not in COPY:
            here = [t for t in given if not isinstance(t, OnGPU) and t.dim()]
            if here and function not in INDEXED:
                raise RuntimeError(f"{function}: tensors of the CPU among those of the GPU")
        if function is ATEN.copy_.default:
            to_gpu = isinstance(args[0], OnGPU)
        if there and (function is ATEN._local_scalar_dense.default or not to_gpu):
            self.copies += 1
        result = function(*held(args), **held(kwargs))
        if function._schema.is_mutable and isinstance(args[0], torch.Tensor):
            return args[0] if isinstance(result, torch.Tensor) else result
        if not to_gpu:
            return result
        return tree_map(lambda t: OnGPU(t) if isinstance(t, torch.Tensor) else t, result)


@contextlib.contextmanager
def pretended_gpu():
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with PretendedGPU() as gpu:
            yield gpu
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
