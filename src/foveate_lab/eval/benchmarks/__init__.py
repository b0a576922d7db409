"""Published benchmarks, read from the folders that their authors release: one file each."""

from foveate_lab.eval.benchmarks import chartqa as chartqa
from foveate_lab.eval.benchmarks import docvqa as docvqa
from foveate_lab.eval.benchmarks import llava_description as llava_description
from foveate_lab.eval.benchmarks import llava_instruct as llava_instruct
from foveate_lab.eval.benchmarks import longbench as longbench
from foveate_lab.eval.benchmarks import loogle as loogle
from foveate_lab.eval.benchmarks import lvbench as lvbench
from foveate_lab.eval.benchmarks import mathvista as mathvista
from foveate_lab.eval.benchmarks import milebench as milebench
from foveate_lab.eval.benchmarks import mlvu as mlvu
from foveate_lab.eval.benchmarks import mm_vet as mm_vet
from foveate_lab.eval.benchmarks import needle_grid as needle_grid
from foveate_lab.eval.benchmarks import ocrbench as ocrbench
from foveate_lab.eval.benchmarks import ovo_bench as ovo_bench
from foveate_lab.eval.benchmarks import screenspot as screenspot
from foveate_lab.eval.benchmarks import sroie as sroie
from foveate_lab.eval.benchmarks import streaming_bench as streaming_bench
from foveate_lab.eval.benchmarks import textcaps as textcaps
from foveate_lab.eval.benchmarks import textvqa as textvqa
from foveate_lab.eval.benchmarks import videomme as videomme
from foveate_lab.eval.benchmarks.folder import BENCHMARKS as BENCHMARKS
from foveate_lab.eval.benchmarks.folder import Benchmark as Benchmark
