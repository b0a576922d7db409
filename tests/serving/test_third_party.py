"""A score of another package is served, and a store is refused by its name."""

import subprocess
import sys

from tests import third_party


def test_their_score_is_served_and_their_store_refused_by_its_name(llama, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.third_party.serves", llama],
        env=third_party.install(tmp_path),
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("served", "refused"))]
    assert said[:-1] == ["served: 25% kept", "served: 29% kept"]  # what whole blocks leave
    assert "half_store() holds pairs in a form of its own" in said[-1]
