"""What vLLM has to know in every one of its processes, before the first engine is made."""

from __future__ import annotations

from foveate.backends.vllm.blocks import CompressedManager, CompressedSpec
from foveate.backends.vllm.platforms import served
from foveate.backends.vllm.vllm_api import (
    AttentionBackendEnum,
    FullAttentionSpec,
    KVCacheSpecRegistry,
    register_backend,
)


def register_all() -> None:
    """The manager of compressed groups, and the attention backends; any number of times.

    vLLM registers managers of its own only into an empty registry, so they come first. It also
    remembers the first backend that it chose in a process, so ours are there from the beginning; in
    engines without our worker each does what the one that it stands for does.

    Raises:
        UnsupportedEngine: a platform that cannot be served on.
    """
    backends = served().backends
    KVCacheSpecRegistry._ensure_registered()
    KVCacheSpecRegistry.register(
        CompressedSpec, CompressedManager, uniform_type_base_spec=FullAttentionSpec
    )
    for name, path in backends.items():
        register_backend(AttentionBackendEnum[name], path)
