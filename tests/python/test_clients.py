# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/clients.md train over Farandole with the losses that they have over gloo.

Their packages are large, so this runs when it is asked for: `make test-clients`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "build" / "clients"
PACKAGES = dict(
    re.findall(
        r"^\| (Accelerate|transformers|Lightning|DeepSpeed)\S*(?: Trainer)? \| ([\d.]+) \|",
        (REPOSITORY / "docs" / "clients.md").read_text(),
        re.MULTILINE,
    )
)

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("FARANDOLE_TEST_CLIENTS"), reason="make test-clients installs them"
    ),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def python() -> str:
    """Of an environment that has the clients, and torch and farandole from this one."""
    if given := os.environ.get("FARANDOLE_CLIENTS_PYTHON"):
        return given
    subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
    command = FOLDER / "bin" / "python"
    found = [command, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(found, check=True, capture_output=True, text=True).stdout.strip())
    # So that the .pth files there count too: farandole-compat has one.
    ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (site / "farandole_of_checkout.pth").write_text(ours)
    (FOLDER / "constraints.txt").write_text(f"torch=={torch.__version__.partition('+')[0]}\n")
    install = [command, "-m", "pip", "install", "-q", "-c", FOLDER / "constraints.txt"]
    wanted = [f"{name.lower()}=={version}" for name, version in PACKAGES.items()]
    deepspeed = [each for each in wanted if each.startswith("deepspeed")]
    others = [each for each in wanted if each not in deepspeed]
    subprocess.run([*install, "setuptools", "wheel", *others], check=True)
    subprocess.run([*install, "--no-build-isolation", *deepspeed], check=True)
    return str(command)


def losses(python: str, program: str, *backend: str) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    path = REPOSITORY / "examples" / "clients" / f"{program}.py"
    done = subprocess.run(
        [python, *launcher, str(path), *backend],
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    name = backend[0] if backend else "farandole"
    found = re.findall(rf"rank \d over {name}: \[.*?\]", done.stdout)
    assert len(found) == 2, done.stdout[-2000:] + done.stderr[-4000:]
    return sorted(each.replace(name, "") for each in found)


def test_the_page_names_the_versions() -> None:
    assert set(PACKAGES) == {"Accelerate", "transformers", "Lightning", "DeepSpeed"}


@pytest.mark.system
@pytest.mark.parametrize(
    "program", ["with_accelerate", "with_trainer", "with_lightning", "with_deepspeed"]
)
def test_losses_are_those_over_gloo(python: str, program: str) -> None:
    assert losses(python, program) == losses(python, program, "gloo")


@pytest.mark.system
def test_deepspeed_takes_the_backend_of_smddp(python: str) -> None:
    assert losses(python, "with_deepspeed", "smddp") == losses(python, "with_deepspeed", "gloo")
