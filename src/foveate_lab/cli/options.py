"""Options shared by several commands of the laboratory."""

from __future__ import annotations

from typing import Annotated

import typer

from foveate_lab.defaults import ExecutorName

JudgeName = Annotated[
    str | None,
    typer.Option(
        "--judge", metavar="MODULE:CALLABLE", help="A language model: a prompt in, text out."
    ),
]

Executor = Annotated[
    ExecutorName, typer.Option("--executor", help="Where: in this process, or on a Ray cluster.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="Of the cluster. [default: one a GPU, or a machine]",
        show_default=False,
    ),
]
Batch = Annotated[
    int,
    typer.Option(
        "--batch", metavar="N", min=1, help="Prompts answered at once, where nothing is timed."
    ),
]
