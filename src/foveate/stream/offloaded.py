"""Offloaded frames of a stream, in main memory or in files, and their retrieval for a question.

The KV pairs of every frame are copied when they are computed, so pairs that a policy drops are not
lost. For a question, each layer's most similar frames are inserted into its branch at their true
positions. Similarity is as in ReKV (arXiv:2503.00540, internal retrieval): between the mean of a
frame's keys and that of the question's queries, without positions, with the heads of a layer as one
vector. There are two differences. ReKV takes the cosine, here it is the dot product. A layer of
ReKV fetches before it attends; here a probe pass reads the question, which is then read again with
the fetched frames.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from foveate.errors import InvalidBudget, InvalidInput
from foveate.hf import Session
from foveate.hf.endless.endless import Back, Made, Returning, finish, looked_at, put_back
from foveate.hf.endless.rerotation import Turned
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.model.internals import CACHE
from foveate.hf.saving import cache_files
from foveate.stream.offload import InFolder, InMemory, Offload, Pairs

HOST = f"{cache_files.HOST}stream_"
"""Prefix of the names of offloaded tensors in a file."""

_TABLES = ("tokens", "image", "spot")


class Frame(NamedTuple):
    """Offloaded frame, without its pairs.

    ``number`` is its number in the stream; ``tokens``, ``image`` and ``spot`` are its tokens'
    indices in the prompt, image numbers and spots. ``means`` are the mean keys of each layer, and
    ``bytes`` is the size of its pairs and means.
    """

    number: int
    tokens: Int[Tensor, "t"]
    image: Int[Tensor, "t"]
    spot: Int[Tensor, "t"]
    means: list[Float[Tensor, "h d"]]
    bytes: int


class Offloaded:
    """Offloaded frames of one stream, in order.

    ``columns`` are the indices in the prompt of the tokens in the cache's columns. ``fetched`` are,
    for each layer, the numbers of the frames that it fetched last.
    """

    def __init__(self, settings: Offload):
        self.settings = settings
        self.frames: list[Frame] = []
        self.columns = torch.zeros(0, dtype=torch.long, device="cpu")
        self.fetched: tuple[tuple[int, ...], ...] = ()
        self._read = 0  # tokens of the stream so far
        self._shelf = InMemory() if settings.folder is None else InFolder(Path(settings.folder))
        self._warned = False

    @property
    def nbytes(self) -> int:
        """Size of all frames in bytes."""
        return sum(frame.bytes for frame in self.frames)

    def claim(self) -> None:
        """Lock the folder for this stream, if there is one; see :class:`InFolder`."""
        self._shelf.claim()

    def count(self, tokens: int) -> None:
        """Add the columns of tokens that were read."""
        new = torch.arange(self._read, self._read + tokens, device="cpu")
        self.columns, self._read = torch.cat([self.columns, new]), self._read + tokens

    def forget(self, stay: Bool[Tensor, "seen"] | None) -> None:
        """Drop the columns that the cache dropped; ``stay`` is True at those that remain."""
        if stay is not None:
            self.columns = self.columns[stay.cpu()]

    def keep(
        self,
        chunk_pairs: Made,
        image: Int[Tensor, "1 t"],
        spot: Int[Tensor, "1 t"],
        ways: Sequence[Turned],
    ) -> None:
        """Store the frames of the chunk that was counted last.

        Args:
            chunk_pairs: the keys and values of the chunk's tokens.
            image: the number of each token's image.
            spot: the index of each token within its image.
            ways: the layers' ways to rotate keys.

        Raises:
            InvalidBudget: a frame is larger than the limit for all of them.
            CannotWrite: the folder is full, or cannot be written to.
        """
        image, spot = image[0].cpu(), spot[0].cpu()
        unrotated = [
            _without_positions(
                chunk_pairs.expanded.get(i, chunk_pairs.k[i]), chunk_pairs, rotation
            )[0]
            for i, rotation in enumerate(ways)
        ]
        tokens = torch.arange(self._read - len(image), self._read, device="cpu")
        for number in sorted(set(image.tolist())):
            of_frame = image == number
            pairs = {
                f"{name}.{ordinal}": x[0, :, of_frame.to(x.device)].cpu()
                for name, layers in (("k", chunk_pairs.k), ("v", chunk_pairs.v))
                for ordinal, x in layers.items()
            }
            means = [k[:, of_frame.to(k.device)].mean(1).cpu() for k in unrotated]
            self._add(number, (tokens[of_frame], image[of_frame], spot[of_frame]), pairs, means)

    def _add(
        self,
        number: int,
        tables: tuple[Tensor, Tensor, Tensor],
        pairs: Pairs,
        means: list[Float[Tensor, "h d"]],
    ) -> None:
        size = sum(t.nbytes for t in (*pairs.values(), *means))
        if size > self.settings.bytes:
            raise InvalidBudget(
                f"a frame takes {size} bytes, more than the limit of {self.settings.bytes} for all "
                "offloaded frames. Raise most= of Offload."
            )
        while self.nbytes + size > self.settings.bytes:
            self._drop_oldest()
        self._shelf.put(number, pairs)
        self.frames.append(Frame(number, *tables, means, size))

    def _drop_oldest(self) -> None:
        """Delete the oldest frame."""
        oldest = self.frames.pop(0)
        self._shelf.drop(oldest.number)
        if not self._warned:
            self._warned = True
            logging.getLogger("foveate").warning(
                "the offloaded frames of a stream have reached %d bytes: the oldest are deleted "
                "from now on. Raise most= of Offload to keep more. Logged once per stream.",
                self.settings.bytes,
            )

    def fetch(
        self,
        session: Session,
        branch: DynamicCache,
        ids: Int[Tensor, "1 t"],
        ways: Sequence[Turned],
    ) -> None:
        """Insert the frames most similar to a question into a branch, after a probe pass."""
        probe, recorded = copy.deepcopy(branch), Made(q={})
        finish(probe)
        with looked_at(probe, recorded):
            session.prefill(input_ids=ids, **{CACHE: probe})
        chosen = self._choose(branch, recorded, ways)
        if chosen is not None:
            put_back(branch, self.columns, chosen)

    def _choose(
        self, cache: DynamicCache, queries: Made, ways: Sequence[Turned]
    ) -> Returning | None:
        """Choose and load the frames for a question's queries; None if none is missing."""
        if not self.frames or queries.q is None:
            return None
        chosen = [
            self._most_similar(_without_positions(queries.q[i], queries, rotation)[0], i, missing)
            for i, (rotation, missing) in enumerate(zip(ways, self._missing(cache), strict=True))
        ]
        self.fetched = tuple(tuple(self.frames[i].number for i in layer) for layer in chosen)
        indices = sorted({i for layer in chosen for i in layer})
        if not indices:
            return None
        stored = {i: self._shelf.get(self.frames[i].number) for i in indices}
        layers = [self._pairs_of(stored, layer, ordinal) for ordinal, layer in enumerate(chosen)]
        tables = {name: self._table(name, indices) for name in _TABLES}
        return Returning(**tables, layers=layers)

    def _pairs_of(self, stored: Mapping[int, Pairs], chosen: Sequence[int], ordinal: int) -> Back:
        """Return the pairs of a layer's chosen frames; empty if there are none."""
        template = next(iter(stored.values()))
        k, v = (
            torch.cat([template[name][:, :0], *(stored[i][name] for i in chosen)], dim=1)[None]
            for name in (f"k.{ordinal}", f"v.{ordinal}")
        )
        return Back(self._table("tokens", chosen), k, v)

    def _table(self, name: str, indices: Sequence[int]) -> Int[Tensor, "u"]:
        """Return one table (a name of ``_TABLES``) of the frames with these indices."""
        return torch.cat([self.columns[:0], *(getattr(self.frames[i], name) for i in indices)])

    def _most_similar(
        self, q: Float[Tensor, "hq m d"], ordinal: int, missing: Bool[Tensor, "F"]
    ) -> list[int]:
        """Return the indices of the missing frames whose mean key has the highest dot product with
        the question's mean query, in ascending order.
        """
        candidates = missing.nonzero()[:, 0]
        if not len(candidates):
            return []
        means = torch.stack([self.frames[i].means[ordinal] for i in candidates.tolist()])
        mean = q.mean(1).cpu().view(means.shape[1], -1, means.shape[2]).mean(1)
        similarity = (means * mean).sum((1, 2))
        best = similarity.topk(min(self.settings.fetch, len(candidates))).indices
        return sorted(candidates[best].tolist())

    def _missing(self, cache: DynamicCache) -> list[Bool[Tensor, "F"]]:
        """Return for each layer a mask of the frames of which a head lacks a pair."""
        sizes = _int_tensor([len(frame.tokens) for frame in self.frames])
        numbers = _int_tensor([frame.number for frame in self.frames])
        images = known_state(cache).images()
        missing = []
        for layer in foveate_layers(cache):
            columns = layer.pairs.columns.cpu()
            image = images[0][0].cpu()[columns[columns >= 0]] if images is not None else columns[:0]
            counts = torch.bincount(image[image >= 0], minlength=int(numbers.max()) + 1)
            missing.append(counts[numbers] < sizes * columns.shape[1])
        return missing

    def tensors(self) -> dict[str, Tensor]:
        """Return all frames as named tensors for a file."""
        indices = range(len(self.frames))
        tensors = {name: self._table(name, indices) for name in _TABLES} | {"columns": self.columns}
        tensors["read"] = _int_tensor([self._read])
        stored = [self._shelf.get(frame.number) for frame in self.frames]
        for name in stored[0] if stored else ():
            tensors[name] = torch.cat([pairs[name] for pairs in stored], dim=1)
        by_layer = zip(*(frame.means for frame in self.frames), strict=True)
        for layer, means in enumerate(by_layer):
            tensors[f"mean.{layer}"] = torch.stack(means)
        return {f"{HOST}{name}": t for name, t in tensors.items()}

    def refill(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the frames from the result of :meth:`tensors`."""
        by_name = {name.removeprefix(HOST): t for name, t in tensors.items()}
        image, own = by_name["image"], [name for name in by_name if name[:2] in ("k.", "v.")]
        layers = sum(name.startswith("mean.") for name in by_name)
        for index, number in enumerate(sorted(set(image.tolist()))):
            of_frame = image == number
            tokens, of_image, spot = (by_name[name][of_frame] for name in _TABLES)
            pairs = {name: by_name[name][:, of_frame].contiguous() for name in own}
            means = [by_name[f"mean.{layer}"][index].clone() for layer in range(layers)]
            self._add(number, (tokens, of_image, spot), pairs, means)
        self.columns, self._read = by_name["columns"], int(by_name["read"])

    def close(self) -> None:
        """Delete all frames, and release the folder."""
        try:
            for frame in self.frames:
                self._shelf.drop(frame.number)
        finally:
            self.frames = []
            self._shelf.release()


def _without_positions(
    x: Float[Tensor, "1 x t d"], recorded: Made, rotation: Turned
) -> Float[Tensor, "1 x t d"]:
    """Rotate keys or queries of the newest tokens back to position 0; in float32."""
    if recorded.positions is None:
        raise InvalidInput("this stream has no record of its tokens' positions: start a new one.")
    positions = recorded.positions[:, recorded.positions.shape[1] - x.shape[2] :]
    return rotation.by(x.float(), -positions[:, None, None])


def _int_tensor(numbers: list[int]) -> Int[Tensor, "x"]:
    return torch.tensor(numbers, dtype=torch.long, device="cpu")
