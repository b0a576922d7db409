"""Lets torchvision be imported beside a PyTorch for CPUs; in the environment of `make vllm` alone.

The processor of Qwen2-VL imports torchvision, whose wheels are built for CUDA. Their compiled part
does not load here, which torchvision itself accepts, but it then asks for two operators that this
part declares. They are declared here, without an implementation: calling one is an error.

Python runs this file at the start of every process of that environment, and of every one that has
this folder in PYTHONPATH; vLLM starts such ones, also to look at a model's class. PyTorch is
imported only where torchvision is.
"""

import importlib.abc
import sys


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if hasattr(torch.ops.torchvision, "nms"):  # declared by this file's other copy
                return None
            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(
                    f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
        return None


# A name of the module, so that the library, which lives as long as this object, stays.
FINDER = _BeforeTorchvision()
sys.meta_path.insert(0, FINDER)
