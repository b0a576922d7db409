"""Endless video streams: frames in, answers out, in a cache of bounded size."""

from foveate.chat.generation import Answer
from foveate.stream.offload import Offload
from foveate.stream.reading import Words
from foveate.stream.storage import StreamHeld
from foveate.stream.stream import Stream

__all__ = ["Answer", "Offload", "Stream", "StreamHeld", "Words"]
