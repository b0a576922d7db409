"""Options shared by several commands of the laboratory."""

from __future__ import annotations

from typing import Annotated

import typer

from foveate_lab.defaults import AnyExecutorName, ExecutorName

JudgeName = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="MODULE:CALLABLE",
        help="Language model that grades answers, from prompt to text, e.g. judges:ask.",
    ),
]

Executor = Annotated[
    ExecutorName, typer.Option("--executor", help="Place to run: this process, or a Ray cluster.")
]
AnyExecutor = Annotated[
    AnyExecutorName,
    typer.Option(
        "--executor", help="Place to run: this process, a Ray cluster, or a server (--url)."
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Server of --executor http with OpenAI's API, e.g. http://localhost:8000/v1.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="Number of Ray workers, or of samples in flight to a server, e.g. 4. [default: one "
        "per GPU, or per machine; 8 in flight]",
        show_default=False,
    ),
]
Batch = Annotated[
    int,
    typer.Option(
        "--batch",
        metavar="N",
        min=1,
        help="Number of prompts to answer together, unless timed, e.g. 8.",
    ),
]
