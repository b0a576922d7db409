"""Frames that leave a stream's memory, kept in main memory or in files, and fetched for a question.

The pairs of every frame are copied when they are made, so what a policy drops is not lost. For a
question the frames that are most like it, layer by layer, are put back on its branch, at their true
positions. What is alike is asked as in ReKV (arXiv:2503.00540, internal retrieval): with the mean
of a frame's keys and that of the question's queries, the heads of a layer in one vector, without
their positions. ReKV takes the cosine of the two, here it is the dot product; and a layer of ReKV
fetches before it attends, where here the question is read once with what is held, and again with
what was fetched.
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
from foveate.hf.endless.reindexed import Turned
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.model.internals import CACHE
from foveate.hf.saving import persist
from foveate.stream.offload import InFolder, InMemory, Offload, Pairs

HOST = f"{persist.HOST}stream_"
"""Before the names of its tensors in a file."""

_TABLES = ("tokens", "image", "spot")


class Frame(NamedTuple):
    """A frame that is kept elsewhere: its number in the stream, the places of its tokens in the
    prompt with the image and spot of each, the mean key of each layer, and the bytes of its pairs
    and of these means.
    """

    number: int
    tokens: Int[Tensor, "t"]
    image: Int[Tensor, "t"]
    spot: Int[Tensor, "t"]
    means: list[Float[Tensor, "h d"]]
    bytes: int


class Offloaded:
    """The frames of one stream, in order. ``columns`` are, for each column of
    its cache, the place of its token in the prompt; ``fetched``, for each layer, the numbers of the
    frames that it fetched last.
    """

    def __init__(self, how: Offload):
        self.how = how
        self.frames: list[Frame] = []
        self.columns = torch.zeros(0, dtype=torch.long, device="cpu")
        self.fetched: tuple[tuple[int, ...], ...] = ()
        self._read = 0  # tokens, in all
        self._shelf = InMemory() if how.folder is None else InFolder(Path(how.folder))
        self._said = False

    @property
    def nbytes(self) -> int:
        """Bytes of all frames."""
        return sum(frame.bytes for frame in self.frames)

    def claim(self) -> None:
        """Make the folder this stream's own, if frames go to one; see :class:`InFolder`."""
        self._shelf.claim()

    def count(self, tokens: int) -> None:
        """So many tokens were read."""
        new = torch.arange(self._read, self._read + tokens, device="cpu")
        self.columns, self._read = torch.cat([self.columns, new]), self._read + tokens

    def forget(self, stay: Bool[Tensor, "seen"] | None) -> None:
        """These columns alone are counted from now on."""
        if stay is not None:
            self.columns = self.columns[stay.cpu()]

    def keep(
        self,
        made: Made,
        image: Int[Tensor, "1 t"],
        spot: Int[Tensor, "1 t"],
        ways: Sequence[Turned],
    ) -> None:
        """The last tokens that were counted are a chunk's, which made these pairs; layers turn keys
        in these ways.

        Raises:
            InvalidBudget: a frame that takes more than all of them may.
            CannotWrite: the folder is full, or cannot be written to.
        """
        image, spot = image[0].cpu(), spot[0].cpu()
        plain = [_without_positions(made.k[i], made, way)[0] for i, way in enumerate(ways)]
        tokens = torch.arange(self._read - len(image), self._read, device="cpu")
        for number in sorted(set(image.tolist())):
            mine = image == number
            pairs = {
                f"{name}.{ordinal}": x[0, :, mine.to(x.device)].cpu()
                for name, each in (("k", made.k), ("v", made.v))
                for ordinal, x in each.items()
            }
            means = [k[:, mine.to(k.device)].mean(1).cpu() for k in plain]
            self._add(number, (tokens[mine], image[mine], spot[mine]), pairs, means)

    def _add(
        self,
        number: int,
        tables: tuple[Tensor, Tensor, Tensor],
        pairs: Pairs,
        means: list[Float[Tensor, "h d"]],
    ) -> None:
        size = sum(t.nbytes for t in (*pairs.values(), *means))
        if size > self.how.bytes:
            raise InvalidBudget(
                f"a frame takes {size} bytes, and all of them may take {self.how.bytes}. Raise "
                "most= of Offload."
            )
        while self.nbytes + size > self.how.bytes:
            self._let_go()
        self._shelf.put(number, pairs)
        self.frames.append(Frame(number, *tables, means, size))

    def _let_go(self) -> None:
        """The oldest frame leaves for good."""
        oldest = self.frames.pop(0)
        self._shelf.drop(oldest.number)
        if not self._said:
            self._said = True
            logging.getLogger("foveate").warning(
                "what a stream keeps elsewhere has reached %d bytes: its oldest frames leave for "
                "good from now on. Raise most= of Offload for more. Said once.",
                self.how.bytes,
            )

    def fetch(
        self,
        session: Session,
        branch: DynamicCache,
        ids: Int[Tensor, "1 t"],
        ways: Sequence[Turned],
    ) -> None:
        """Put back into a branch what a question is about; its tokens are read once for that."""
        asking, made = copy.deepcopy(branch), Made(q={})
        finish(asking)
        with looked_at(asking, made):
            session.prefill(input_ids=ids, **{CACHE: asking})
        returning = self._returning(branch, made, ways)
        if returning is not None:
            put_back(branch, self.columns, returning)

    def _returning(
        self, cache: DynamicCache, queries: Made, ways: Sequence[Turned]
    ) -> Returning | None:
        """What is put back for a question that made such queries; None where nothing is missing."""
        if not self.frames or queries.q is None:
            return None
        chosen = [
            self._most_alike(_without_positions(queries.q[i], queries, way)[0], i, missing)
            for i, (way, missing) in enumerate(zip(ways, self._missing(cache), strict=True))
        ]
        self.fetched = tuple(tuple(self.frames[i].number for i in each) for each in chosen)
        wanted = sorted({i for each in chosen for i in each})
        if not wanted:
            return None
        held = {i: self._shelf.get(self.frames[i].number) for i in wanted}
        layers = [self._back(held, each, ordinal) for ordinal, each in enumerate(chosen)]
        tables = {name: self._all(name, wanted) for name in _TABLES}
        return Returning(**tables, layers=layers)

    def _back(self, held: Mapping[int, Pairs], chosen: Sequence[int], ordinal: int) -> Back:
        """The pairs of a layer's frames, of which there may be none."""
        like = next(iter(held.values()))
        k, v = (
            torch.cat([like[name][:, :0], *(held[i][name] for i in chosen)], dim=1)[None]
            for name in (f"k.{ordinal}", f"v.{ordinal}")
        )
        return Back(self._all("tokens", chosen), k, v)

    def _all(self, name: str, some: Sequence[int]) -> Int[Tensor, "u"]:
        """One table of these frames."""
        return torch.cat([self.columns[:0], *(getattr(self.frames[i], name) for i in some)])

    def _most_alike(
        self, q: Float[Tensor, "hq m d"], ordinal: int, missing: Bool[Tensor, "F"]
    ) -> list[int]:
        """The frames, of those that are missing, whose mean key has the highest dot product with
        the question's mean query; in order.
        """
        places = missing.nonzero()[:, 0]
        if not len(places):
            return []
        means = torch.stack([self.frames[i].means[ordinal] for i in places.tolist()])
        mean = q.mean(1).cpu().view(means.shape[1], -1, means.shape[2]).mean(1)
        alike = (means * mean).sum((1, 2))
        best = alike.topk(min(self.how.fetch, len(places))).indices
        return sorted(places[best].tolist())

    def _missing(self, cache: DynamicCache) -> list[Bool[Tensor, "F"]]:
        """In each layer, the frames of which some head lacks some pair."""
        sizes = _whole([len(frame.tokens) for frame in self.frames])
        numbers = _whole([frame.number for frame in self.frames])
        images = known_state(cache).images()
        missing = []
        for layer in foveate_layers(cache):
            columns = layer.pairs.columns.cpu()
            image = images[0][0].cpu()[columns[columns >= 0]] if images is not None else columns[:0]
            held = torch.bincount(image[image >= 0], minlength=int(numbers.max()) + 1)
            missing.append(held[numbers] < sizes * columns.shape[1])
        return missing

    def tensors(self) -> dict[str, Tensor]:
        """All that is held, by name, for a file."""
        every = range(len(self.frames))
        tensors = {name: self._all(name, every) for name in _TABLES} | {"columns": self.columns}
        tensors["read"] = _whole([self._read])
        held = [self._shelf.get(frame.number) for frame in self.frames]
        for name in held[0] if held else ():
            tensors[name] = torch.cat([pairs[name] for pairs in held], dim=1)
        of_layers = zip(*(frame.means for frame in self.frames), strict=True)
        for layer, means in enumerate(of_layers):
            tensors[f"mean.{layer}"] = torch.stack(means)
        return {f"{HOST}{name}": t for name, t in tensors.items()}

    def refill(self, tensors: Mapping[str, Tensor]) -> None:
        """Holds what ``tensors()`` were."""
        on_host = {name.removeprefix(HOST): t for name, t in tensors.items()}
        image, own = on_host["image"], [name for name in on_host if name[:2] in ("k.", "v.")]
        layers = sum(name.startswith("mean.") for name in on_host)
        for place, number in enumerate(sorted(set(image.tolist()))):
            mine = image == number
            tokens, of_image, spot = (on_host[name][mine] for name in _TABLES)
            pairs = {name: on_host[name][:, mine].contiguous() for name in own}
            means = [on_host[f"mean.{layer}"][place].clone() for layer in range(layers)]
            self._add(number, (tokens, of_image, spot), pairs, means)
        self.columns, self._read = on_host["columns"], int(on_host["read"])

    def close(self) -> None:
        """Lets go of all frames."""
        try:
            for frame in self.frames:
                self._shelf.drop(frame.number)
        finally:
            self.frames = []
            self._shelf.release()


def _without_positions(
    x: Float[Tensor, "1 x t d"], made: Made, way: Turned
) -> Float[Tensor, "1 x t d"]:
    """Keys or queries of the newest tokens, turned back; in float32."""
    if made.positions is None:
        raise InvalidInput("where this stream's tokens stand was not noted: begin it anew.")
    places = made.positions[:, made.positions.shape[1] - x.shape[2] :]
    return way.by(x.float(), -places[:, None, None])


def _whole(numbers: list[int]) -> Int[Tensor, "x"]:
    return torch.tensor(numbers, dtype=torch.long, device="cpu")
