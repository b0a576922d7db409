"""Endless video streams: frames in, answers out, in a cache of bounded size."""

from foveate.chat.generation import Answer
from foveate.chat.streaming import AnswerStream
from foveate.stream.offload import Offload
from foveate.stream.reading import Words
from foveate.stream.storage import StreamFrame, StreamHeld
from foveate.stream.stream import Stream

__all__ = ["Answer", "AnswerStream", "Offload", "Stream", "StreamFrame", "StreamHeld", "Words"]
