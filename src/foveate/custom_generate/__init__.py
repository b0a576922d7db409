"""A folder of transformers' ``custom_generate``: what holds this package is given by its path,
``model.generate(**inputs, custom_generate=FOLDER, policy="snapkv:budget=20%")``.
"""

from pathlib import Path

FOLDER = str(Path(__file__).parent.parent)
"""For ``custom_generate=``; transformers also asks for ``trust_remote_code=True``."""
