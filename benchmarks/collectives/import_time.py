# SPDX-License-Identifier: Apache-2.0
"""What `import farandole` costs beyond `import torch`, each time in a fresh interpreter."""

import json
import statistics
import subprocess
import sys

CODE = """
import time
begin = time.perf_counter()
import torch
middle = time.perf_counter()
import farandole
print((middle - begin) * 1e3, (time.perf_counter() - middle) * 1e3)
"""


def measure(interpreters: int) -> dict[str, object]:
    """Medians in milliseconds. One more interpreter runs first, so that files are cached."""
    runs = []
    for _ in range(interpreters + 1):
        command = [sys.executable, "-c", CODE]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        runs.append([float(word) for word in text.split()])
    torch_ms, farandole_ms = zip(*runs[1:], strict=True)
    return {
        "lane": "import",
        "import_torch_ms": round(statistics.median(torch_ms), 1),
        "import_farandole_ms": round(statistics.median(farandole_ms), 1),
        "interpreters": interpreters,
    }


if __name__ == "__main__":
    print(json.dumps(measure(9)))
