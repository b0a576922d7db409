"""Compare this checkout with the record, or take a new one."""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
os.environ.update(COLUMNS="100", FOVEATE_TESTS_CHECKED="0")

from . import drawing, recording


def main() -> None:
    """Print one line for every run that differs, and end with 1 if one does."""
    parser = argparse.ArgumentParser(prog="python -m tests.record", description=__doc__)
    parser.add_argument("--write", action="store_true", help="take a new record")
    parser.add_argument("--only", metavar="GLOB", default="*", help="runs, e.g. 'chat/*,error/*'")
    parser.add_argument("--accept", metavar="GLOBS", help="runs or RUN:FIELD changed on purpose")
    parser.add_argument("--because", metavar="REASON", help="why, with --accept")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    if bool(given.accept) != bool(given.because):
        parser.error("--accept and --because go together")
    start = time.monotonic()
    if given.write:
        record = recording.write(drawing.draw(), given.jobs)
        print(f"{len(record['runs'])} runs in {time.monotonic() - start:.0f} s: {recording.STORED}")
        return
    record = recording.stored()
    names = [name for name in record["runs"] if recording.matches(name, given.only)]
    found = list(recording.differences(record, names, given.jobs))
    exact = record["machine"] == recording.machine()
    if given.accept:
        count = recording.accept(record, found, given.accept, given.because, exact)
        recording.store(record)
        print(f"{count} fields accepted")
        return
    for line in recording.told(found):
        print(line)
    for name, repair in record["repairs"].items():
        print(f"accepted: {name}: {', '.join(repair['now'])}: {repair['because']}")
    how = "to the bit" if exact else "within 1e-5, as on another machine"
    different = len({name for name, *_ in found})
    took = time.monotonic() - start
    print(f"{len(names)} runs compared {how} in {took:.0f} s: {different} differ")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
