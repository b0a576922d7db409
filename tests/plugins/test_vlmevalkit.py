"""VLMEvalKit's contract, by a stand-in of the two modules of it that the plug-in imports."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from foveate.errors import InvalidInput, InvalidParameter, MissingPackage
from tests.plugins.alone import said

PLUGIN = "foveate_lab.plugins.vlmevalkit"
SPEC = "snapkv:budget=50%,window=4"


class BaseModel:
    """How VLMEvalKit's base class calls a model: a string, a dict, or a list of either becomes a
    list of dicts, whose types have to be allowed; then ``generate_inner``.
    """

    INTERLEAVE = False
    allowed_types = ("text", "image")

    def set_dump_image(self, function: Any) -> None:
        self.dump_image = function

    def generate(self, message: Any, dataset: str | None = None) -> Any:
        given = message if isinstance(message, list) else [message]
        parts = [one if isinstance(one, dict) else self._guessed(one) for one in given]
        assert all(one["type"] in self.allowed_types for one in parts)
        return self.generate_inner(parts, dataset)  # type: ignore[attr-defined]

    def _guessed(self, text: str) -> dict[str, str]:
        return {"type": "image" if Path(text).is_file() else "text", "value": text}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The plug-in, imported beside the stand-in."""
    contents: dict[str, dict[str, Any]] = {
        "vlmeval": {},
        "vlmeval.vlm": {},
        "vlmeval.vlm.base": {"BaseModel": BaseModel},
        "vlmeval.config": {"supported_VLM": {"GPT4o": None}},
    }
    for name, content in contents.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    yield importlib.import_module(PLUGIN)
    del sys.modules[PLUGIN]


def test_a_registered_model_answers_interleaved_messages(
    plugin: Any, directory: Path, pictures: list[Path], tmp_path: Path
) -> None:
    log = tmp_path / "kv.jsonl"
    plugin.register(
        "Qwen2.5-VL-tiny", pretrained=str(directory), method=SPEC, max_new_tokens=6, log=log
    )
    model = plugin.supported_VLM["Qwen2.5-VL-tiny"](use_vllm=False)  # as for such names it is built
    model.set_dump_image(None)
    first, second = (str(path) for path in pictures[:2])
    message = [
        {"type": "text", "value": "Is "},
        {"type": "image", "value": first},
        {"type": "text", "value": " as "},
        {"type": "image", "value": second},
        {"type": "text", "value": "?"},
    ]
    expected = [
        said(directory, SPEC, "user : Is <image> as <image>?\nassistant : ", pictures[:2]),
        said(directory, SPEC, "user : <image>Who?\nassistant : ", pictures[:1]),
        said(directory, SPEC, "user : Who is it?\nassistant : ", []),
    ]
    answers = [
        model.generate(message, "MMBench"),
        model.generate([first, "Who?"]),
        model.generate("Who is it?"),
    ]
    assert all(one.is_said(text) for one, text in zip(expected, answers, strict=True))
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row.pop("dataset") for row in rows] == ["MMBench", None, None]
    assert all(row.pop("seconds") > 0 for row in rows)
    assert rows == [
        {key: value for key, value in one._asdict().items() if key not in ("text", "sure")}
        for one in expected
    ]


def test_what_is_not_supported_is_refused(plugin: Any, directory: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="GPT4o"):
        plugin.register("GPT4o", pretrained="x", method="full")
    with pytest.raises(InvalidParameter, match="use_vllm"):
        plugin.Foveate("x", "full", use_vllm=True)
    model = plugin.Foveate(str(directory), "full")
    with pytest.raises(InvalidInput, match="a message with video"):
        model.generate_inner([{"type": "video", "value": "a.mp4"}])
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(InvalidInput, match="cannot be read as an image"):
        model.generate_inner([{"type": "image", "value": str(tmp_path / "a.png")}])


def test_without_vlmevalkit_one_is_told_where_it_comes_from() -> None:
    with pytest.raises(MissingPackage, match="repository"):
        importlib.import_module(PLUGIN)
