"""Conversations: text and images in, text out, in one compressed cache."""

from foveate.chat.asking import Answer
from foveate.chat.chat import Chat
from foveate.chat.held import ChatHeld
from foveate.chat.pipeline import Pipeline
from foveate.chat.streaming import AnswerStream

__all__ = ["Answer", "AnswerStream", "Chat", "ChatHeld", "Pipeline"]
