"""A rule instead of the language model that judges answers."""

from __future__ import annotations


def judge(prompt: str) -> str:
    """Grade an MM-Vet prediction: 1.0 if it contains a ground truth, else 0.0; of another response
    return the last word.
    """
    text = prompt.rstrip()
    if text.endswith("|"):
        _, truth, prediction = f"{text[:-1].rstrip()} ".rsplit(" | ", 2)
        right = (answer.strip().lower() for answer in truth.split("<OR>"))
        return "1.0" if any(answer in prediction.lower() for answer in right) else "0.0"
    response = text.rpartition("Response:")[2].removesuffix("Final answer:")
    return (response.split() or [""])[-1].strip(".")
