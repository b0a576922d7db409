"""Lines of ``foveate chat``: text with paths of images and videos in it, and commands."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

import typer

from foveate.chat import AnswerStream, Chat
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


_VIDEOS = r"\.(?:mp4|m4v|mov|mkv|webm|avi|mpe?g)"
_KINDS = rf"(?:\.(?:png|jpe?g|webp|gif|bmp|tiff?)|{_VIDEOS})"
_PATH = re.compile(
    rf"""(?P<mark>['"])(?P<quoted>[^'"\n]+?{_KINDS})(?P=mark)"""
    rf"""|(?P<bare>(?:\\.|[^\s'"])+{_KINDS})(?=$|[\s,;:?!)]|\.(?:\s|$))""",
    re.IGNORECASE,
)


class ChatLine(NamedTuple):
    """What a line says: a command and its argument, or text, images (paths or addresses) and videos
    (paths).
    """

    command: str
    text: str
    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()


def read_line(line: str) -> ChatLine:
    """A line of a chat. Paths of images and videos are taken out of the text, as terminals write
    them when a file is dragged into the window: plain, in quotes, with spaces escaped, or as
    ``file://``.

    Raises:
        InvalidInput: the path of an image or video, with a folder or in quotes, that is not there.
    """
    line = line.strip()
    if line.startswith("/") and not _PATH.match(line):
        command, _, argument = line[1:].partition(" ")
        return ChatLine(command, argument.strip())
    images: list[str] = []
    videos: list[str] = []

    def taken(match: re.Match[str]) -> str:
        place = _place(match["quoted"] or match["bare"])
        film = re.search(f"{_VIDEOS}$", place, re.IGNORECASE) is not None
        if Path(place).is_file() or (not film and place.startswith(("http://", "https://"))):
            (videos if film else images).append(place)
            return ""
        if match["quoted"] or "/" in place:
            what = "video file" if film else "image"
            raise InvalidInput(f"there is no {what} at {place!r}.")
        return match[0]

    text = " ".join(_PATH.sub(taken, line).split())
    return ChatLine("", text, tuple(images), tuple(videos))


def _place(written: str) -> str:
    if written.startswith("file://"):
        return unquote(urlparse(written).path)
    if os.name != "nt":  # where a backslash is part of a path
        written = re.sub(r"\\(.)", r"\1", written)
    return str(Path(written).expanduser()) if written.startswith("~") else written


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

    def take(self, written: str) -> bool:
        """Does what a line says; False if the chat is over."""
        line = read_line(written)
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
        known: dict[str, Callable[[], None]] = {
            "budget": lambda: self._under(under(self._policy.spec, argument)),
            "method": lambda: self._under(under(argument, "")),
            "forget": self._forget,
            "retry": lambda: self._show(self._chat.retry(stream=True)),
            "save": lambda: typer.echo(f"saved as {self._chat.save(Path(argument))}", err=True),
            "load": lambda: self._load(argument),
            "help": lambda: typer.echo(HELP, err=True),
        }
        if command not in known:
            raise InvalidInput(f"/{command} is unknown: /help lists the commands.")
        if not argument and command in ("budget", "method", "save", "load"):
            raise InvalidInput(f"/{command} needs an argument: see /help.")
        known[command]()

    def _under(self, policy: Policy) -> None:
        """Another policy: what was said is read again with the next turn."""
        self._policy = policy
        said = self._anew or self._chat.messages
        self._forget()
        self._anew = list(said)
        anew = ", from which the conversation is read anew" if said else ""
        typer.echo(f"{short(policy.spec)}{anew}", err=True)

    def _forget(self) -> None:
        self._chat.close()
        self._anew, self._chat = [], self._begun()

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
