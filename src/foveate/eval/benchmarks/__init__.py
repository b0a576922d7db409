"""Published benchmarks, read from the folders that their authors release: one file each."""

from foveate.eval.benchmarks import chartqa as chartqa
from foveate.eval.benchmarks import docvqa as docvqa
from foveate.eval.benchmarks import llava_description as llava_description
from foveate.eval.benchmarks import llava_instruct as llava_instruct
from foveate.eval.benchmarks import longbench as longbench
from foveate.eval.benchmarks import loogle as loogle
from foveate.eval.benchmarks import lvbench as lvbench
from foveate.eval.benchmarks import mathvista as mathvista
from foveate.eval.benchmarks import milebench as milebench
from foveate.eval.benchmarks import mlvu as mlvu
from foveate.eval.benchmarks import mm_vet as mm_vet
from foveate.eval.benchmarks import needle_grid as needle_grid
from foveate.eval.benchmarks import ocrbench as ocrbench
from foveate.eval.benchmarks import ovo_bench as ovo_bench
from foveate.eval.benchmarks import screenspot as screenspot
from foveate.eval.benchmarks import streaming_bench as streaming_bench
from foveate.eval.benchmarks import textcaps as textcaps
from foveate.eval.benchmarks import textvqa as textvqa
from foveate.eval.benchmarks import videomme as videomme
from foveate.eval.benchmarks.folder import BENCHMARKS as BENCHMARKS
from foveate.eval.benchmarks.folder import Benchmark as Benchmark
from foveate.eval.benchmarks.folder import benchmark as benchmark
