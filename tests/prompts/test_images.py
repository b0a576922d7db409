"""An image is the same in every form in which users have it, and upright; others are refused."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import foveate
from foveate.errors import InvalidInput
from foveate.prompts.images import image_list, to_image
from foveate.prompts.inputs import encode
from foveate.prompts.template import render
from foveate.stream import reading
from foveate.stream.reading import Words
from tests.chat.conversations import image
from tests.chat.families import talker
from tests.core.users import unchecked
from tests.stream import tiny

PHOTO = image(0)
PIXELS = np.asarray(PHOTO)
CLEAR = PHOTO.copy()
CLEAR.putalpha(PHOTO.convert("L"))
ROTATED = 6  # EXIF: the camera was held upright, and the pixels lie on their side


def encoded(shown: Image.Image, form: str = "PNG", **how: Any) -> bytes:
    file = io.BytesIO()
    shown.save(file, form, **how)
    return file.getvalue()


def in_floats(shown: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(shown, dtype=np.float32) / 255)


def on_its_side(shown: Image.Image) -> Image.Image:
    """The image as a phone stores it."""
    exif = Image.Exif()
    exif[0x0112] = ROTATED
    turned = shown.transpose(Image.Transpose.ROTATE_90)
    return Image.open(io.BytesIO(encoded(turned, exif=exif)))


def forms(folder: Path) -> dict[str, tuple[Any, Image.Image]]:
    """Values that users have, and the PIL image that each is."""
    plain, blob = folder / "a b.png", folder / ("0f" * 20)
    for path in (plain, blob):
        path.write_bytes(encoded(PHOTO))
    text = base64.b64encode(encoded(PHOTO)).decode()
    grey = PHOTO.convert("L")
    return {
        "path": (plain, PHOTO),
        "name": (str(plain), PHOTO),
        "blob": (str(blob), PHOTO),
        "file address": (plain.as_uri(), PHOTO),
        "base64": (text, PHOTO),
        "data": (f"data:image/png;base64,{text}", PHOTO),
        "bytes": (encoded(PHOTO), PHOTO),
        "bytes of datasets": ({"bytes": encoded(PHOTO), "path": None}, PHOTO),
        "path of datasets": ({"bytes": None, "path": str(plain)}, PHOTO),
        "upright": (on_its_side(PHOTO), PHOTO),
        "array": (PIXELS, PHOTO),
        "channels first": (PIXELS.transpose(2, 0, 1), PHOTO),
        "tensor": (torch.from_numpy(PIXELS.copy()), PHOTO),
        "floats": (in_floats(PHOTO).permute(2, 0, 1), PHOTO),
        "doubles": (PIXELS / 255, PHOTO),
        "grey": (np.asarray(grey), grey),
        "one channel": (in_floats(grey)[None], grey),
        "clear": (np.asarray(CLEAR), CLEAR),
        "clear floats": (in_floats(CLEAR).permute(2, 0, 1), CLEAR),
    }


@pytest.mark.parametrize("family", ["qwen2_vl", "llava", "internvl", "gemma3"])
def test_every_form_of_an_image_gives_the_inputs_of_the_pil_image(
    family: str, tmp_path: Path
) -> None:
    who = talker(family)
    parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    text = render(who.processor, [{"role": "user", "content": parts}])
    for name, (form, shown) in forms(tmp_path).items():
        ours, theirs = (encode(who.model, who.processor, text, [one]) for one in (form, shown))
        assert set(ours) == set(theirs)
        for key, value in theirs.items():
            assert torch.equal(torch.as_tensor(ours[key]), torch.as_tensor(value)), (name, key)


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "photo").write_bytes(encoded(PHOTO))
    for form in ("~/photo", Path("~/photo")):
        assert to_image(form).tobytes() == PHOTO.tobytes()


def test_a_single_image_and_a_batch_are_lists_of_images(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(PHOTO))
    for single in (PHOTO, str(tmp_path / "a.png"), PIXELS, {"path": str(tmp_path / "a.png")}):
        assert [to_image(one).tobytes() for one in image_list(single)] == [PHOTO.tobytes()]
    batch = torch.stack([in_floats(PHOTO)] * 3)
    assert [to_image(one).tobytes() for one in image_list(batch)] == [PHOTO.tobytes()] * 3


NO_IMAGES = {
    "none": (None, "is None: give a PIL image"),
    "a number": (7, "is of type 'int'"),
    "floats of 8 bits": (PIXELS.astype(np.float32), r"has floats from .*: scale them to \[0, 1\]"),
    "normalised": (torch.randn(3, 8, 8), r"has floats from -.*, before any normalisation"),
    "not a number": (np.full((8, 8, 3), np.nan), "has floats from nan to nan"),
    "whole numbers": (PIXELS.astype(np.int64), "has the dtype int64: convert it to uint8"),
    "two channels": (PIXELS[..., :2], r"has the shape \[\d+, \d+, 2\]"),
    "a batch": (PIXELS[None], r"has the shape \[1, "),
    "no pixel": (PIXELS[:0], r"has the shape \[0, "),
    "nothing of datasets": ({"bytes": None, "path": None}, "has no pixels"),
}


@pytest.mark.parametrize("case", NO_IMAGES)
def test_what_is_no_image_is_named_with_its_argument(case: str) -> None:
    value, sentence = NO_IMAGES[case]
    who = talker("llava")
    chat = foveate.Chat(who.model, who.processor)
    with unchecked(), pytest.raises(InvalidInput, match=rf"^images\[1\] {sentence}"):
        chat.say("What?", images=[PHOTO, value])


@pytest.mark.parametrize("text", ["none.png", "~/none.png", "no base64 and no path", "file:///no"])
def test_what_cannot_be_opened_is_named_with_its_argument(text: str) -> None:
    who = talker("llava")
    with pytest.raises(InvalidInput, match=r"images\[0\].* cannot be read"):
        foveate.Chat(who.model, who.processor).say("What?", images=text)


class Answers(BaseHTTPRequestHandler):
    """A server that has one image, deep and grey, and nothing else."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/photo" else 404)
        self.end_headers()
        self.wfile.write(encoded(Image.fromarray(np.full((4, 6), 1 << 15, np.uint16))))

    def log_message(self, *said: Any) -> None:
        """Keeps quiet."""


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "*")
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_image_from_the_web_is_read_as_a_file_is(address: str) -> None:
    assert to_image(f"{address}/photo").getpixel((0, 0)) == (128, 128, 128)


@pytest.mark.parametrize("path", ["/nothing", ":1/", "http://[", "http://\0"])
def test_an_image_that_cannot_be_fetched_is_our_error(address: str, path: str) -> None:
    url = path if path.startswith("http") else address + path
    who = talker("llava")
    with pytest.raises(InvalidInput, match=r"images\[0\].*cannot be fetched"):
        foveate.Chat(who.model, who.processor).say("What?", images=[url])


def frames_as_read(frames: Any, time: Any = None) -> reading.Chunk:
    processor = tiny.processor()
    ((part, times),) = reading.parts_of(frames, time, None)
    return reading.of_frames(tiny.model(), processor, Words.of(processor), part, times, 0)


def test_a_stream_sees_frames_upright_and_in_every_form(tmp_path: Path) -> None:
    wide = tiny.frame(1, width=4 * tiny.SIDE)
    path = tmp_path / "frame"
    wide.save(path, "PNG")
    expected = frames_as_read(wide).inputs
    assert expected["image_grid_thw"][0].tolist() == [1, 4, 8]
    for form in (on_its_side(wide), path, str(path), np.asarray(wide), {"path": str(path)}):
        for name, value in frames_as_read(form).inputs.items():
            assert torch.equal(value, expected[name]), (type(form), name)


def test_a_stream_sees_a_clip_with_its_times() -> None:
    shown = [tiny.frame(number) for number in range(2)]
    clip = foveate.Clip(np.stack([*map(np.asarray, shown)]), np.array([0.0, 1.5]), 2.0, 2.0)
    ours, theirs = frames_as_read(clip).inputs, frames_as_read(shown, [0.0, 1.5]).inputs
    assert all(torch.equal(value, ours[name]) for name, value in theirs.items())


@pytest.mark.parametrize("frames", [None, 7, [None]])
def test_a_stream_refuses_what_is_no_frame(frames: Any) -> None:
    stream = foveate.Stream(tiny.model(), tiny.processor(), "infinipotv:budget=64")
    with unchecked(), pytest.raises(InvalidInput, match=r"^frames(\[0\])? is "):
        stream.see(frames)
