"""Configuration of an original (config.json), with checked access."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig

from foveate.errors import InvalidInput, ModelNotFound, UnsupportedModel
from foveate_lab.convert.weights import json_file


@dataclass(frozen=True)
class ConfigFacts:
    """Configuration, or a part of one, with entries looked up by name."""

    entries: dict[str, Any]
    where: str

    def get(self, name: str, default: Any = None) -> Any:
        """Return an entry, or the default if it is missing."""
        return self.entries.get(name, default)

    def number(self, name: str) -> int:
        """Return an entry that must be an integer above zero, else raise InvalidInput."""
        value = self.entries.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidInput(
                f"{name} in {self.where} is {value!r}; it must be an integer above 0."
            )
        return value

    def part(self, name: str) -> ConfigFacts:
        """Return a nested configuration. Raises InvalidInput if there is none of that name."""
        value = self.entries.get(name)
        if not isinstance(value, dict):
            raise InvalidInput(f"{self.where} has no {name}. Download the whole repository.")
        return ConfigFacts(value, f"{name} of {self.where}")

    def must_be(self, name: str, *allowed: Any, default: Any = None) -> Any:
        """Return an entry that must have one of these values, else raise UnsupportedModel."""
        value = self.entries.get(name, default)
        if value not in allowed:
            known = " or ".join(repr(option) for option in allowed)
            raise UnsupportedModel(
                f"{name} in {self.where} is {value!r}, and only {known} can be converted."
            )
        return value


def read_facts(folder: Path) -> ConfigFacts:
    """Read config.json of a directory.

    Raises:
        ModelNotFound: no such directory, or no configuration in it.
    """
    path = folder / "config.json"
    if not path.is_file():
        problem = "there is no config.json in it" if folder.is_dir() else "no such directory"
        raise ModelNotFound(f"{str(folder)!r} holds no model: {problem}.")
    return ConfigFacts(json_file(path), str(path))


def llama(facts: ConfigFacts, rows: int) -> LlamaConfig:
    """Return the configuration of a Llama with ``rows`` rows of embeddings."""
    heads = facts.number("num_attention_heads")
    rope = {"rope_type": "default"} | (facts.get("rope_scaling") or {})
    rope["rope_type"] = rope.pop("type", rope["rope_type"])
    return LlamaConfig(
        vocab_size=rows,
        hidden_size=facts.number("hidden_size"),
        intermediate_size=facts.number("intermediate_size"),
        num_hidden_layers=facts.number("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=facts.get("num_key_value_heads", heads),
        max_position_embeddings=facts.number("max_position_embeddings"),
        rms_norm_eps=facts.get("rms_norm_eps", 1e-6),
        hidden_act=facts.get("hidden_act", "silu"),
        attention_bias=bool(facts.get("bias", facts.get("attention_bias", False))),
        rope_parameters=rope | {"rope_theta": float(facts.get("rope_theta", 10000.0))},
        bos_token_id=facts.get("bos_token_id"),
        eos_token_id=facts.get("eos_token_id"),
        pad_token_id=facts.get("pad_token_id"),
        tie_word_embeddings=False,
    )
