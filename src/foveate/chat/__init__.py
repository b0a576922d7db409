"""Conversations: text and images in, text out, in one compressed cache."""

from foveate.chat.chat import Chat
from foveate.chat.event_loop import AsyncAnswerStream
from foveate.chat.generation import Answer
from foveate.chat.pipeline import Pipeline
from foveate.chat.storage import ChatHeld, TurnHeld
from foveate.chat.streaming import AnswerStream
from foveate.chat.usage import Usage

__all__ = [
    "Answer",
    "AnswerStream",
    "AsyncAnswerStream",
    "Chat",
    "ChatHeld",
    "Pipeline",
    "TurnHeld",
    "Usage",
]
