"""Conversion of PP-OCRv6 small from the ONNX files of rapidocr to the package's float16 weights.

    pip download --no-deps rapidocr==3.10.0 && unzip -d rapidocr rapidocr-3.10.0-py3-none-any.whl
    python -m training.reader.convert rapidocr/rapidocr/models [--to DIR] [--compare 100]

Needs the package ``onnx``; ``--compare`` also needs ``onnxruntime``, and prints how far the
features of drawn lines are from those of the ONNX file. Nothing else in the repository needs them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from safetensors.torch import save_file
from torch import Tensor, nn

from foveate_reader.detection import Line, pixels_of
from foveate_reader.eye import crop, load_eye
from foveate_reader.networks import READABLE, Detector, Encoder
from training.fonts import training_fonts
from training.reader.documents import any_document

FILES = {"detector": "PP-OCRv6_det_small.onnx", "encoder": "PP-OCRv6_rec_small.onnx"}
TO = Path(__file__).parents[2] / "foveate_reader" / "weights"
Nodes = Sequence[Any]


class Graph:
    """An ONNX graph: its nodes without identities, and its constants as tensors."""

    def __init__(self, path: Path):
        model = onnx.load(path)
        self.constants = {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}
        properties = {entry.key: entry.value for entry in model.metadata_props}
        self.characters = properties.get("character", "").split("\n")
        renamed: dict[str, str] = {}
        self.nodes: list[Any] = []
        for node in model.graph.node:
            inputs = [renamed.get(name, name) for name in node.input]
            if node.op_type == "Constant":
                self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
            elif node.op_type == "Identity":
                renamed[node.output[0]] = inputs[0]
            else:
                node.input[:] = inputs
                self.nodes.append(node)

    def tensor(self, name: str) -> Tensor:
        return torch.from_numpy(np.array(self.constants[name]))

    def after(self, node: Any, kinds: Sequence[str]) -> Any:
        """Return the node of one of these kinds that uses a node's output; None without one."""
        users = [user for user in self.nodes if node.output[0] in user.input]
        return next((user for user in users if user.op_type in kinds), None)

    def of_kind(self, *kinds: str) -> list[Any]:
        return [node for node in self.nodes if node.op_type in kinds]


def convolutions(graph: Graph, network: nn.Module) -> None:
    """Copy the weights of all convolutions, in order; biases follow as sums or normalisations."""
    theirs = graph.of_kind("Conv", "ConvTranspose")
    ours = [part for part in network.modules() if isinstance(part, nn.Conv2d | nn.ConvTranspose2d)]
    for node, part in zip(theirs, ours, strict=True):
        weight, bias = graph.tensor(node.input[1]), None
        follows = graph.after(node, ["Add", "BatchNormalization"])
        if follows is not None and follows.op_type == "BatchNormalization":
            gain, shift, mean, variance = map(graph.tensor, follows.input[1:])
            scale = gain / torch.sqrt(variance + 1e-5)
            weight, bias = weight * scale[:, None, None, None], shift - mean * scale
        elif follows is not None and part.bias is not None:
            bias = graph.tensor(follows.input[1]).flatten()
        part.weight.data.copy_(weight)
        if part.bias is not None:
            assert bias is not None
            part.bias.data.copy_(bias)


def linears(graph: Graph, encoder: Encoder) -> None:
    """Copy the encoder's linear layers and normalisations, in order, and its head's rows."""
    theirs = [node for node in graph.of_kind("MatMul") if node.input[1] in graph.constants]
    ours = [part for part in encoder.modules() if isinstance(part, nn.Linear)]
    rows = slice(None)
    for node, part in zip(theirs, ours, strict=True):
        weight = graph.tensor(node.input[1]).T
        bias = graph.tensor(graph.after(node, ["Add"]).input[1])
        if part is encoder.head:
            rows = head_rows(graph)
        part.weight.data.copy_(weight[rows])
        part.bias.data.copy_(bias[rows])
    norms = [part for part in encoder.modules() if isinstance(part, nn.LayerNorm)]
    for i, norm in enumerate(norms):
        norm.weight.data.copy_(graph.tensor(f"helper.reshape.{2 * i}"))
        norm.bias.data.copy_(graph.tensor(f"helper.reshape.{2 * i + 1}"))


def head_rows(graph: Graph) -> list[int]:
    """Return the head's rows of "no character" (0) and of each of ``READABLE``.

    The published list of characters starts at row 1; a space is the last row.
    """
    known = {character: 1 + i for i, character in enumerate([*graph.characters, " "])}
    return [0, *(known[character] for character in READABLE)]


def converted(models: Path) -> tuple[Detector, Encoder]:
    """Return both networks with the published weights, in float32."""
    detector, encoder = Detector().eval(), Encoder().eval()
    convolutions(Graph(models / FILES["detector"]), detector)
    graph = Graph(models / FILES["encoder"])
    convolutions(graph, encoder)
    linears(graph, encoder)
    return detector, encoder


@torch.no_grad()
def compare(models: Path, count: int) -> None:
    """Print how far features and readings are from the ONNX file's, and the time of each."""
    import onnxruntime

    torch.set_num_threads(1)
    _, encoder = converted(models)
    model = onnx.load(models / FILES["encoder"])
    features = [node for node in model.graph.node if node.op_type == "MatMul"][-1].input[0]
    model.graph.output.append(onnx.helper.make_tensor_value_info(features, 1, None))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    rows = head_rows(Graph(models / FILES["encoder"]))
    packed = load_eye().encoder
    apart, seconds, rounded, read = 0.0, [0.0, 0.0], 0.0, [0, 0]
    for pixels in lines(count):
        times = [time.process_time()]
        ours = encoder(pixels[None])
        times.append(time.process_time())
        half = packed(pixels[None])
        times.append(time.process_time())
        output, theirs = map(torch.from_numpy, session.run(None, {"x": pixels[None].numpy()}))
        seconds = [seconds[0] + times[1] - times[0], seconds[1] + time.process_time() - times[2]]
        apart = max(apart, float((ours - theirs).abs().max()))
        rounded = max(rounded, float((half - theirs).abs().max()))
        same = packed.head(half).argmax(-1) == output[..., rows].argmax(-1)
        read = [read[0] + int(same.sum()), read[1] + same.numel()]
    print(f"{count} lines: features differ by at most {apart:.1e}, in float16 by {rounded:.1e};")
    print(f"columns that are read alike in float16: {read[0]:,} of {read[1]:,};")
    print(f"CPU seconds of a line: {seconds[0] / count:.3f}, ONNX file: {seconds[1] / count:.3f}")


def lines(count: int) -> Iterator[Tensor]:
    """Draw lines of documents, as the encoder sees them."""
    r = Random("compare")
    while True:
        document = any_document(r, training_fonts(), 20)
        for item in r.sample(document.items, min(5, len(document.items))):
            left, top, right, bottom = item.box
            if right - left > 8 and bottom - top > 6:
                yield pixels_of(
                    crop(document.image, Line(left, max(0, top - 2), right, bottom + 2))
                )
                count -= 1
            if not count:
                return


def main() -> None:
    """Write both networks in float16."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", type=Path, help="folder with the ONNX files")
    parser.add_argument("--to", type=Path, default=TO)
    parser.add_argument("--compare", type=int, default=0, help="number of lines to compare on")
    a = parser.parse_args()
    for name, network in zip(FILES, converted(a.models), strict=True):
        state = {key: value.half().contiguous() for key, value in network.state_dict().items()}
        save_file(state, a.to / f"{name}.safetensors")
        print(f"{name}: {sum(value.numel() for value in state.values()):,} parameters")
    if a.compare:
        compare(a.models, a.compare)


if __name__ == "__main__":
    main()
