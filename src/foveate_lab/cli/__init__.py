"""Commands of the laboratory."""

from foveate.cli.app import CommandPlace

COMMANDS = {
    "convert": CommandPlace(
        "foveate_lab.cli.convert",
        "convert",
        "Convert a model in its authors' layout to one that Foveate and transformers load.",
    ),
    "eval": CommandPlace(
        "foveate_lab.cli.eval",
        "evaluate",
        "Answer many questions under many policies, and record answers and scores.",
    ),
    "report": CommandPlace(
        "foveate_lab.cli.report",
        "report",
        "Make one page of results: scores against memory, with intervals.",
    ),
    "reproduce": CommandPlace(
        "foveate_lab.cli.reproduce",
        "reproduce",
        "Run the experiments of the five papers, and set every number beside the paper's.",
    ),
    "bench": CommandPlace(
        "foveate_lab.cli.bench",
        "benchmark",
        "Measure what methods add to the prefill, and what they save in decoding and memory.",
    ),
}
