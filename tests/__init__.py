"""The test suite. Noise on linear layers has to be there before a model is made: `jitter`."""

import os

if os.environ.get("FOVEATE_JITTER"):
    from . import jitter

    jitter.install()
