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
Type a message; the path of an image or video, or an image's address, shows it to the model.
/budget B      change the budget: 10%, 256 (tokens) or 64MB
/method SPEC   change the method, e.g. snapkv
/forget        start a new conversation
/retry         answer the last question again; /undo takes it back
/usage         show tokens, seconds and memory of this chat
/save FILE     save the chat to a file; /load FILE continues a saved chat
/quit          end the chat, like Ctrl-D; Ctrl-C stops an answer"""


_VIDEOS = r"\.(?:mp4|m4v|mov|mkv|webm|avi|mpe?g)"
_KINDS = rf"(?:\.(?:png|jpe?g|webp|gif|bmp|tiff?)|{_VIDEOS})"
_PATH = re.compile(
    rf"""(?P<mark>['"])(?P<quoted>[^'"\n]+?{_KINDS})(?P=mark)"""
    rf"""|(?P<bare>(?:\\.|[^\s'"])+{_KINDS})(?=$|[\s,;:?!)]|\.(?:\s|$))""",
    re.IGNORECASE,
)


class ChatLine(NamedTuple):
    """Content of a line: a command with its argument, or a text with images and videos.

    ``images`` are paths or addresses, ``videos`` paths.
    """

    command: str
    text: str
    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()


def read_line(line: str) -> ChatLine:
    """Parse a line of a chat, and move the paths of images and videos out of its text.

    Paths may be written as terminals do when a file is dragged into the window: plain, in quotes,
    with escaped spaces, or as ``file://``.

    Raises:
        InvalidInput: a path with a folder or in quotes names an image or video that is missing.
    """
    line = line.strip()
    if line.startswith("/") and not _PATH.match(line):
        command, _, argument = line[1:].partition(" ")
        return ChatLine(command, argument.strip())
    images: list[str] = []
    videos: list[str] = []

    def take_out(match: re.Match[str]) -> str:
        path = _to_path(match["quoted"] or match["bare"])
        is_video = re.search(f"{_VIDEOS}$", path, re.IGNORECASE) is not None
        if Path(path).is_file() or (not is_video and path.startswith(("http://", "https://"))):
            (videos if is_video else images).append(path)
            return ""
        if match["quoted"] or "/" in path:
            kind = "video file" if is_video else "image"
            raise InvalidInput(f"there is no {kind} at {path!r}.")
        return match[0]

    text = " ".join(_PATH.sub(take_out, line).split())
    return ChatLine("", text, tuple(images), tuple(videos))


def _to_path(written: str) -> str:
    if written.startswith("file://"):
        return unquote(urlparse(written).path)
    if os.name != "nt":  # where a backslash is part of a path
        written = re.sub(r"\\(.)", r"\1", written)
    return str(Path(written).expanduser()) if written.startswith("~") else written


class Talk:
    """Chat in a terminal, with the images and videos typed for the next turn."""

    def __init__(
        self, loaded: Loaded, policy: Policy, tokens: int, system: str, template: dict[str, Any]
    ):
        self._loaded, self._policy, self._template = loaded, policy, template
        self._tokens, self._system = tokens, system
        self.images: list[Any] = []
        self.videos: list[Clip] = []
        self.sampling: tuple[float | None, int | None] = None, None  # fps, frames of videos
        self._to_reread: list[Message] = []  # by the next turn, under a new policy
        self._chat = self._new_chat()

    def take(self, written: str) -> bool:
        """Run a typed line; return False if it ends the chat."""
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
            self._send(line.text)
        elif line.images:
            typer.echo(f"{len(self.images)} image(s): ask about them.", err=True)
        return True

    def watch(self, clips: Sequence[Clip]) -> None:
        """Add videos to the next turn; as images if the processor takes no videos."""
        for clip in clips:
            typer.echo(clip_line(clip, self._loaded), err=True)
            if takes_videos(self._loaded):
                self.videos.append(clip)
            else:
                self.images += clip.images

    def _command(self, command: str, argument: str) -> None:
        known: dict[str, Callable[[], None]] = {
            "budget": lambda: self._switch_policy(under(self._policy.spec, argument)),
            "method": lambda: self._switch_policy(under(argument, "")),
            "forget": self._forget,
            "retry": lambda: self._show(self._chat.retry(stream=True)),
            "undo": self._undo,
            "usage": lambda: typer.echo(self._chat.usage, err=True),
            "save": lambda: typer.echo(f"saved as {self._chat.save(Path(argument))}", err=True),
            "load": lambda: self._load(argument),
            "help": lambda: typer.echo(HELP, err=True),
        }
        if command not in known:
            raise InvalidInput(f"/{command} is unknown: /help lists the commands.")
        if not argument and command in ("budget", "method", "save", "load"):
            raise InvalidInput(f"/{command} needs an argument: see /help.")
        known[command]()

    def _switch_policy(self, policy: Policy) -> None:
        """Switch to another policy; the next turn reads the conversation again under it."""
        self._policy = policy
        messages = self._to_reread or self._chat.messages
        self._forget()
        self._to_reread = list(messages)
        suffix = "; the next turn reads the conversation again" if messages else ""
        typer.echo(f"{short(policy.spec)}{suffix}", err=True)

    def _forget(self) -> None:
        self._chat.close()
        self._to_reread, self._chat = [], self._new_chat()

    def _undo(self) -> None:
        self._chat.undo()
        typer.echo(f"{len(self._chat.messages)} messages, {self._usage()}", err=True)

    def _load(self, argument: str) -> None:
        loaded = self._loaded
        self._chat = Chat.load(argument, loaded.model, loaded.reader)
        self._policy, self._to_reread = self._chat.policy, []
        typer.echo(f"{len(self._chat.messages)} messages, {self._usage()}", err=True)

    def _send(self, text: str) -> None:
        images, videos, self.images, self.videos = self.images, self.videos, [], []
        stream = self._chat.say(
            text,
            images=images,
            videos=videos,
            messages=self._to_reread,
            stream=True,
            max_new_tokens=self._tokens,
        )
        self._show(stream)
        self._to_reread = []

    def _show(self, stream: AnswerStream) -> None:
        with _stop_on_interrupt(self._chat):
            for piece in stream:
                typer.echo(piece, nl=False)
            ended = stream.answer.ended
        typer.echo()
        reason = {"stopped": "stopped; ", "length": f"{self._tokens} tokens; "}.get(ended, "")
        typer.echo(f"[{reason}{self._usage()}]", err=True)

    def _usage(self) -> str:
        stored = self._chat.held
        return (
            f"{stored.tokens:.0f} of {stored.seen} tokens stored, {stored.share:.0%}, "
            f"{stored.bytes / 2**20:,.1f} MiB"
        )

    def _new_chat(self) -> Chat:
        return Chat(
            self._loaded.model,
            self._loaded.reader,
            self._policy,
            system=self._system or None,
            template_kwargs=self._template,
        )


def under(spec: str, budget: str) -> Policy:
    """Return the policy of a spec, at ``budget`` unless that is ""."""
    return policies([spec], [budget] if budget else [])[-1]


@contextmanager
def _stop_on_interrupt(chat: Chat) -> Iterator[None]:
    """Let the first Ctrl-C stop the answer; a second one raises KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        chat.stop()

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
