"""Folder for transformers' ``custom_generate``:
``model.generate(**inputs, custom_generate=FOLDER, policy="snapkv:budget=20%")``.
"""

from pathlib import Path

FOLDER = str(Path(__file__).parent.parent)
"""Path to pass as ``custom_generate=``; transformers also needs ``trust_remote_code=True``."""
