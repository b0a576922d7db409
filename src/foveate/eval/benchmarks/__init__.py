"""Published benchmarks, read from the folders that their authors release: one file each."""

from foveate.eval.benchmarks import (
    chartqa,
    docvqa,
    llava_description,
    llava_instruct,
    longbench,
    loogle,
    mathvista,
    milebench,
    mm_vet,
    needle_grid,
    ocrbench,
    screenspot,
    textcaps,
    textvqa,
)
from foveate.eval.benchmarks.folder import BENCHMARKS, Benchmark, benchmark

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "benchmark",
    "chartqa",
    "docvqa",
    "llava_description",
    "llava_instruct",
    "longbench",
    "loogle",
    "mathvista",
    "milebench",
    "mm_vet",
    "needle_grid",
    "ocrbench",
    "screenspot",
    "textcaps",
    "textvqa",
]
