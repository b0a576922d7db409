"""The offloading of vLLM on a CPU: its OffloadingConnector and all of its scheduler, with a worker
that copies pages between two tensors, as vLLM's own worker runs on GPUs alone.
"""

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

MOVED = {"store": 0, "load": 0}  # bytes, of all engines of this process


class CopyingWorker(OffloadingWorker):
    """Copies at once, and reports a copy as done after the step."""

    def __init__(self, caches, chunks):
        self._pages = [each.tensor for each in caches.tensors]
        self._groups = caches.group_data_refs
        self._stored = [page.new_zeros((chunks, page.shape[1])) for page in self._pages]
        self._done = []

    def _copy(self, job, blocks, chunks, kind):
        moved, at = 0, 0
        for refs, size in zip(self._groups, blocks.group_sizes, strict=True):
            pairs = zip(
                blocks.block_ids[at : at + size].tolist(),
                chunks.block_ids[at : at + size].tolist(),
                strict=True,
            )
            at += size
            for block, chunk in pairs:
                for tensor in {ref.tensor_idx for ref in refs}:
                    page, stored = self._pages[tensor], self._stored[tensor]
                    if kind == "store":
                        stored[chunk] = page[block]
                    else:
                        page[block] = stored[chunk]
                    moved += page.shape[1]
        MOVED[kind] += moved
        self._done.append(TransferResult(job, True, moved, 0.0))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, "store")

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, dst_spec, src_spec, "load")

    def get_finished(self):
        done, self._done = self._done, []
        return done

    def wait(self, job_ids):
        pass


class Copied(CPUOffloadingSpec):
    """vLLM's spec with that worker."""

    def get_worker(self, kv_caches):
        return CopyingWorker(kv_caches, self.num_chunks)


def offloading(size=8 << 20, **more):
    """The option that offloads into so many bytes."""
    from vllm.config import KVTransferConfig

    extra = {"cpu_bytes_to_use": size, "spec_name": "Copied", "spec_module_path": __name__} | more
    return {
        "kv_transfer_config": KVTransferConfig(
            kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
        )
    }
