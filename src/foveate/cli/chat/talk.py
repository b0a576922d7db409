"""What lines of ``foveate chat`` do: they are said, or are commands."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from foveate.chat import AnswerStream, Chat
from foveate.cli.chat.lines import ChatLine
from foveate.cli.policies import policies
from foveate.cli.prompt import clip_line, clips_of
from foveate.cli.tables import short
from foveate.data import Clip
from foveate.errors import InvalidInput
from foveate.loading.model import Loaded
from foveate.policies.policy import Policy
from foveate.prompts.messages import Message
from foveate.prompts.prompt import takes_videos

HELP = """\
Say something; the path of an image or video, or an image's address, shows it to the model.
/budget B      keep another share, number of tokens or of bytes: 10%, 256, 64MB
/method SPEC   compress by another method
/forget        begin anew
/retry         answer the last question again
/save FILE     write the chat to a file; /load FILE goes on with one
/quit          end, as Ctrl-D does; Ctrl-C ends an answer"""


class Talk:
    """A chat, and what was typed for the turn that comes next."""

    def __init__(
        self, loaded: Loaded, policy: Policy, tokens: int, system: str, template: dict[str, Any]
    ):
        self._loaded, self._policy, self._template = loaded, policy, template
        self._tokens, self._system = tokens, system
        self.images: list[Any] = []
        self.videos: list[Clip] = []
        self.sampling: tuple[float | None, int | None] = None, None  # fps or frames of videos
        self._anew: list[Message] = []  # a conversation that the next turn reads again
        self._chat = self._begun()

    def take(self, line: ChatLine) -> bool:
        """Does what a line says; False if the chat is over."""
        if line.command == "quit":
            return False
        if line.command:
            self._command(line.command, line.text)
            return True
        self.images += line.images
        if line.videos:
            self.watch(clips_of([*map(Path, line.videos)], *self.sampling))
        if line.text:
            self._say(line.text)
        elif line.images:
            typer.echo(f"{len(self.images)} image(s): ask about them.", err=True)
        return True

    def watch(self, clips: Sequence[Clip]) -> None:
        """Shows videos with what is said next; where the processor takes none, as images."""
        for clip in clips:
            typer.echo(clip_line(clip, self._loaded), err=True)
            if takes_videos(self._loaded):
                self.videos.append(clip)
            else:
                self.images += clip.images

    def _command(self, command: str, argument: str) -> None:
        known = {
            "budget": self._budget,
            "method": self._method,
            "forget": self._forget,
            "retry": self._retry,
            "save": self._save,
            "load": self._load,
            "help": self._help,
        }
        if command not in known:
            raise InvalidInput(f"/{command} is unknown: /help lists the commands.")
        if not argument and command in ("budget", "method", "save", "load"):
            raise InvalidInput(f"/{command} needs an argument: see /help.")
        known[command](argument)

    def _help(self, argument: str) -> None:
        typer.echo(HELP, err=True)

    def _budget(self, argument: str) -> None:
        self._under(under(self._policy.spec, argument))

    def _method(self, argument: str) -> None:
        self._under(under(argument, ""))

    def _under(self, policy: Policy) -> None:
        """Another policy: what was said is read again with the next turn."""
        self._policy = policy
        said = self._anew or self._chat.messages
        self._forget("")
        self._anew = list(said)
        anew = ", from which the conversation is read anew" if said else ""
        typer.echo(f"{short(policy.spec)}{anew}", err=True)

    def _forget(self, argument: str) -> None:
        self._chat.close()
        self._anew, self._chat = [], self._begun()

    def _retry(self, argument: str) -> None:
        self._show(self._chat.retry(stream=True))

    def _save(self, argument: str) -> None:
        typer.echo(f"saved as {self._chat.save(Path(argument))}", err=True)

    def _load(self, argument: str) -> None:
        loaded = self._loaded
        self._chat = Chat.load(argument, loaded.model, loaded.reader)
        self._policy, self._anew = self._chat.policy, []
        typer.echo(f"{len(self._chat.messages)} messages, {self._held()}", err=True)

    def _say(self, text: str) -> None:
        images, videos, self.images, self.videos = self.images, self.videos, [], []
        stream = self._chat.say(
            text,
            images=images,
            videos=videos,
            messages=self._anew,
            stream=True,
            max_new_tokens=self._tokens,
        )
        self._show(stream)
        self._anew = []

    def _show(self, stream: AnswerStream) -> None:
        with _stopping(self._chat):
            for piece in stream:
                typer.echo(piece, nl=False)
            ended = stream.answer.ended
        typer.echo()
        why = {"stopped": "stopped; ", "length": f"{self._tokens} tokens; "}.get(ended, "")
        typer.echo(f"[{why}{self._held()}]", err=True)

    def _held(self) -> str:
        held = self._chat.held
        return (
            f"{held.tokens:.0f} of {held.seen} tokens held, {held.share:.0%}, "
            f"{held.bytes / 2**20:,.1f} MiB"
        )

    def _begun(self) -> Chat:
        return Chat(
            self._loaded.model,
            self._loaded.reader,
            self._policy,
            system=self._system or None,
            template_kwargs=self._template,
        )


def under(spec: str, budget: str) -> Policy:
    """The policy of a spec, at another budget if one is given."""
    return policies([spec], [budget] if budget else [])[-1]


@contextmanager
def _stopping(chat: Chat) -> Iterator[None]:
    """The first interrupt ends the answer; a second one is one."""
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        chat.stop()

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
