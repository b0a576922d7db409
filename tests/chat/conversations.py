"""A conversation of six turns with four images, said turn by turn; and the same read whole by the
stock model, with each turn's own settings of its images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from PIL import Image
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

import foveate
from foveate.chat.turns import Turns
from tests.conformance.oracle import Event, event_of, oracle

from .families import Talker

LETTERS = range(20, 116)
SIZES = ((30, 20), (16, 40), (50, 22), (24, 24))


def image(number: int) -> Image.Image:
    """One of four, of different sizes."""
    drawn = Image.linear_gradient("L").rotate(40 * number)
    return Image.merge("RGB", [drawn, drawn.rotate(90), drawn.rotate(180)]).resize(SIZES[number])


TURNS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("What is the total?", (0,)),
    ("And the tax?", ()),
    ("Which of these is older?", (1, 2)),
    ("Why?", ()),
    ("This one?", (3,)),
    ("What was on the first?", ()),
)
"""What is said, and which images come with it."""


class Spoken(LogitsProcessor):
    """Gives the model's answers: these tokens, whatever it would say; keeps its logits. At the
    second one something may happen.
    """

    def __init__(self, tokens: Sequence[int], happens: Callable[[], Any] | None = None):
        self.tokens, self.logits, self.happens = list(tokens), [], happens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.happens is not None and len(self.logits) == 1:
            self.happens()
        told = torch.full_like(scores, -torch.inf)
        told[:, self.tokens[len(self.logits)]] = 0.0
        self.logits.append(scores[0].clone())
        return told


def words(number: int, length: int = 4) -> list[int]:
    """What is answered in a turn, as tokens of letters."""
    drawn = torch.Generator().manual_seed(number)
    return torch.randint(LETTERS.start, LETTERS.stop, (length,), generator=drawn).tolist()


class Record:
    """What the turns of a chat were: inputs, answers and their logits, and what was kept."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []
        self.logits: list[Tensor] = []
        self.starts: list[int] = []
        self.events: list[Event] = []

    def say(self, chat: foveate.Chat, number: int, eos: int | None = None, **how: Any) -> Any:
        """The turn of that number; its answer ends by itself where ``eos`` is given."""
        text, images = TURNS[number]
        return self.of(chat, number, eos, text, images=[image(i) for i in images], **how)

    def of(
        self,
        chat: Any,
        number: int,
        eos: int | None,
        *said: Any,
        call: str = "say",
        happens: Callable[[], Any] | None = None,
        tokens: Sequence[int] = (),
        **how: Any,
    ) -> Any:
        """One answer, however it is asked for; these tokens, or letters that are drawn."""
        tokens = list(tokens) or words(number)
        spoken = Spoken([*tokens[:-1], eos] if eos is not None else tokens, happens)
        settings = {"max_new_tokens": len(tokens), "eos_token_id": eos, "do_sample": False}
        answer = getattr(chat, call)(
            *said, logits_processor=LogitsProcessorList([spoken]), **settings, **how
        )
        if how.get("stream"):
            text = "".join(answer)
            answer = answer.answer
            assert text.strip() == answer.text
        self.logits.append(torch.stack(spoken.logits))
        self.starts.append(chat._now.ids.shape[1] - len(answer.ids))
        self.events.append(event_of(chat._now.cache))
        return answer

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Notes what each turn brings."""
        prepared = Turns.prepared

        def noted(*args: Any, **kwargs: Any) -> Any:
            ready = prepared(*args, **kwargs)
            self.given.append(ready.part.media)
            return ready

        with mock.patch.object(Turns, "prepared", noted):
            yield

    def forget(self) -> None:
        """The latest turn is taken back."""
        for each in (self.given, self.logits, self.starts, self.events):
            del each[-1]

    def differs(
        self,
        talker: Talker,
        chat: foveate.Chat,
        masked: bool = False,
        hidden: Mapping[int, Tensor] | None = None,
    ) -> float:
        """The largest difference from the logits of the stock model that reads all of it at once;
        if ``masked``, without seeing what was forgotten after each turn, nor what is ``hidden``.
        """
        now = chat._now
        inputs = {"input_ids": now.ids, **now.types, **joined(self.given)}
        inputs["attention_mask"] = torch.ones_like(now.ids)
        events = self.events if masked else ()
        with torch.no_grad(), oracle(talker.model, *events, hidden=hidden):
            logits = talker.model(**inputs).logits[0]
        apart = [
            (mine - logits[start - 1 : start - 1 + len(mine)]).abs().max()
            for mine, start in zip(self.logits, self.starts, strict=True)
        ]
        return float(max(apart))


def joined(given: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """The pixels of all turns; fewer tiles are padded."""
    found = {}
    for name in {name for one in given for name in one}:
        each = [torch.as_tensor(one[name]) for one in given if name in one]
        tiles = max(one.shape[1] if one.ndim == 5 else 0 for one in each)
        found[name] = torch.cat(
            [
                torch.nn.functional.pad(one, (0, 0) * 3 + (0, tiles - one.shape[1]))
                if one.ndim == 5
                else one
                for one in each
            ]
        )
    return found
