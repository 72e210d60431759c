# SPDX-License-Identifier: Apache-2.0
"""`farandole migrate check`: what it finds in scripts, and that its tables are true."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import farandole
import pytest
from farandole.migrate.answer import Verdict
from farandole.migrate.check import Finding, check
from farandole.migrate.command_line import main
from farandole.migrate.judge import Judge
from farandole.migrate.known import TOPS, Known
from farandole.migrate.pages import horovod, smddp, smdebug, torch_names
from farandole.migrate.rows import Difference, Refusal, Row, Variable
from farandole.migrate.use import Use
from farandole_compat import finder

REPOSITORY = Path(__file__).parents[2]
PAGES = {"horovod": horovod, "smddp": smddp, "smdebug": smdebug}

finder.install()


def found(folder: Path, text: str, name: str = "train.py") -> dict[str, Finding]:
    """What the text of a file uses."""
    path = folder / name
    path.write_text(text)
    return {each.text: each for each in check([path])}


def verdicts(folder: Path, text: str, name: str = "train.py") -> dict[str, str]:
    return {use: each.answer.verdict.value for use, each in found(folder, text, name).items()}


# What is found.


def test_imports_names_and_methods(tmp_path: Path) -> None:
    script = """
import horovod.torch as hvd
import smdebug.pytorch as smd
from smdebug.trials import create_trial as open_trial

def train(hook):
    hook.register_module(None)
    hook.regster_loss(None)

hvd.init()
hvd.allredcue(1)
hook = smd.get_hook()
train(hook)
trial = open_trial("a")
loss = trial.tensor("loss")
loss.values()
trial.tensr("loss")
open_trial("a").steps()
"""
    uses = found(tmp_path, script)
    assert {use: each.answer.verdict.value for use, each in uses.items()} == {
        "horovod.torch": "works",
        "horovod.torch.init": "works",
        "horovod.torch.allredcue": "unknown",
        "smdebug.pytorch": "works",
        "smdebug.pytorch.get_hook": "works",
        "smdebug.pytorch.Hook.register_module": "works",
        "smdebug.pytorch.Hook.regster_loss": "unknown",
        "smdebug.trials.create_trial": "works",
        "smdebug.trials.Trial.tensor": "works",
        "smdebug.core.tensor.Tensor.values": "works",
        "smdebug.trials.Trial.tensr": "unknown",
        "smdebug.trials.Trial.steps": "works",
    }
    assert uses["smdebug.trials.create_trial"].lines == (4, 14, 18)
    assert uses["horovod.torch.allredcue"].answer.notes == (("nearest", "allreduce"),)
    assert uses["smdebug.pytorch.Hook.regster_loss"].answer.notes == (("nearest", "register_loss"),)


@pytest.mark.parametrize(
    "text",
    [
        "import horovod\nhorovod.torch.start_timelines()",
        "from horovod import torch as hvd\nhvd.start_timelines()",
        "from horovod.torch import start_timelines",
        "def f():\n    if f:\n        import horovod.torch as hvd\n    hvd.start_timelines()",
        "try:\n    import horovod.torch as hvd\nexcept ImportError:\n    hvd = None\n"
        "hvd.start_timelines()",
        "import horovod.torch as hvd\nclass A:\n    x = [hvd.start_timelines for _ in range(3)]",
        "import horovod.torch.mpi_ops\nhorovod.torch.mpi_ops.start_timelines",
    ],
)
def test_each_way_to_a_name(tmp_path: Path, text: str) -> None:
    unknown = [use for use, verdict in verdicts(tmp_path, text).items() if verdict == "unknown"]
    assert len(unknown) == 1
    assert unknown[0].endswith("start_timelines")


def test_what_is_imported_as_a_module_is_one(tmp_path: Path) -> None:
    uses = found(tmp_path, "import horovod.run as run\nimport horovod.torch")
    assert uses["horovod.run"].answer.verdict is Verdict.UNKNOWN
    assert uses["horovod.run"].answer.notes == (
        ("why", "there is horovod.run, but no module of this name"),
        ("nearest", "runner"),
    )
    assert uses["horovod.torch"].answer.verdict is Verdict.WORKS
    script = "from horovod.run import run\nrun(f)\nimport horovod\nhorovod.run.run_commandline()"
    assert verdicts(tmp_path, script) == {
        "horovod.run": "unknown",
        "horovod": "works",
        "horovod.run.run_commandline": "unknown",
    }
    assert verdicts(tmp_path, "from horovod.runner import run\nrun(f)") == {
        "horovod.runner.run": "works"
    }


def test_names_that_modules_do_not_list(tmp_path: Path) -> None:
    script = """
import horovod.torch as hvd
import smdistributed.dataparallel.torch.distributed as dist
hvd.elastic.init()
dist.group.WORLD
dist.group.WORDL
"""
    group = "smdistributed.dataparallel.torch.distributed.group"
    uses = verdicts(tmp_path, script)
    assert uses["horovod.torch.elastic.init"] == "works"
    assert uses[f"{group}.WORLD"] == "works"
    assert uses[f"{group}.WORDL"] == "unknown"


def test_a_variable_gets_the_line_that_names_it(tmp_path: Path) -> None:
    (use,) = found(tmp_path, "import os\nos.environ['SMDATAPARALLEL_LOCAL_RANK']").values()
    assert use.answer.verdict is Verdict.WORKS
    assert use.answer.notes == (("here", "the rank on its host; both versions set it"),)


def test_strategies_of_lightning(tmp_path: Path) -> None:
    text = """
import pytorch_lightning as pl
from pytorch_lightning.strategies import HorovodStrategy
pl.Trainer(strategy="horovod")
pl.Trainer(strategy=HorovodStrategy())
pl.Trainer(strategy="ddp")
"""
    assert verdicts(tmp_path, text) == {
        "pytorch_lightning.strategies.HorovodStrategy": "refused",
        "pytorch_lightning.Trainer(strategy=horovod)": "refused",
    }


def test_a_name_that_stands_for_two_libraries_gets_both(tmp_path: Path) -> None:
    text = """
if smddp:
    import smdistributed.dataparallel.torch.distributed as dist
else:
    import torch.distributed as dist
dist.init_process_group("nccl")
dist.get_local_rank()
"""
    assert verdicts(tmp_path, text) == {
        "smdistributed.dataparallel.torch.distributed": "works",
        "smdistributed.dataparallel.torch.distributed.get_local_rank": "works",
        "smdistributed.dataparallel.torch.distributed.init_process_group": "works",
        "smdistributed.dataparallel.torch.distributed.init_process_group(backend=nccl)": "differs",
        "torch.distributed.init_process_group": "works",
    }


def test_objects_are_followed(tmp_path: Path) -> None:
    text = """
import smdebug.pytorch as smd
class Trainer:
    def __init__(self):
        self.hook = smd.Hook("x")
    def run(self):
        self.hook.regster()
if (other := smd.get_hook()):
    other.regster2()
both = smd.Hook("y")
both = object()
both.regster3()
none = None
none = smd.Hook("z")
none.regster4()
"""
    uses = verdicts(tmp_path, text)
    assert [use for use, verdict in uses.items() if verdict == "unknown"] == [
        f"smdebug.pytorch.Hook.regster{number}" for number in ("", 2, 4)
    ]


def test_a_star_brings_all_names(tmp_path: Path) -> None:
    uses = verdicts(tmp_path, "from horovod.torch import *\nallreduce(1)\nprint(2)\n")
    assert uses == {"horovod.torch": "works", "horovod.torch.allreduce": "works"}


def test_modules_that_are_imported_by_a_text(tmp_path: Path) -> None:
    text = "import importlib\nimportlib.import_module('horovod.tensorflow')\n__import__('smppy')"
    assert verdicts(tmp_path, text) == {"horovod.tensorflow": "refused", "smppy": "works"}


def test_other_libraries_and_local_names_are_nothing(tmp_path: Path) -> None:
    text = """
import numpy as np
from . import horovod
from .smdebug import hook
backend = "horovod"
horovod.nothing()
np.zeros(3)
hvd = object()
hvd.whatever()
distribution = {"a": 1}
"""
    assert verdicts(tmp_path, text) == {}


def test_arguments_of_calls(tmp_path: Path) -> None:
    text = """
import horovod.torch as hvd
import smdebug.pytorch as smd
from smdebug.trials import create_trial
from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as DDP
import torch
hvd.init([0, 1])
hvd.allreduce(x, op=hvd.Sum, prescale=2)
hvd.reducescatter(x, op=hvd.Max)
hvd.reducescatter(x, op=hvd.Sum)
hvd.DistributedOptimizer(o, compression=hvd.Compression.fp16, **more)
hvd.allreduce(*both)
hvd.size(3)
hvd.allreduce(x, None, "n", hvd.Compression.none, None, 1.0, 1.0, hvd.global_process_set)
hvd.allreduce(x, None, "n", hvd.Compression.none, None, 1.0, 1.0, hvd.global_process_set, 9)
hvd.DistributedOptimizer(o, gradient_predivide_factor=2.0, num_groups=None)
DDP(model, broadcast_buffers=False)
DDP(model, None, None, True)
create_trial("s3://bucket/x")
create_trial(path, profiler=True)
smd.Hook(save_al=True)
torch.nn.parallel.DistributedDataParallel(model, bucket_cap=1)
"""
    uses = {use: verdict for use, verdict in verdicts(tmp_path, text).items() if "(" in use}
    assert uses == {
        "horovod.torch.init(comm)": "differs",
        "horovod.torch.allreduce(prescale=2)": "unknown",
        "horovod.torch.reducescatter(op=Max)": "refused",
        "horovod.torch.DistributedOptimizer(compression=fp16)": "differs",
        "horovod.torch.size(positional argument 1)": "unknown",
        "horovod.torch.allreduce(positional argument 9)": "unknown",
        "smdistributed.dataparallel.torch.parallel.DistributedDataParallel"
        "(broadcast_buffers=True)": "differs",
        "smdebug.trials.create_trial(path=s3://bucket/x)": "refused",
        "smdebug.trials.create_trial(profiler=True)": "refused",
        "smdebug.pytorch.Hook(save_al=True)": "unknown",
        "torch.nn.parallel.DistributedDataParallel(bucket_cap=1)": "unknown",
    }


def test_an_argument_that_differs_beside_another(tmp_path: Path) -> None:
    text = """
import horovod.torch as hvd
hvd.DistributedOptimizer(o, gradient_predivide_factor=2.0, num_groups=3)
"""
    uses = verdicts(tmp_path, text)
    assert uses["horovod.torch.DistributedOptimizer(gradient_predivide_factor=2.0)"] == "differs"


def test_variables_and_options(tmp_path: Path) -> None:
    text = """
import os, smppy
os.environ["HOROVOD_CYCLE_TIME"] = "5"
os.environ.get("HOROVOD_NUM_NCCL_STREAMS")
env = {"HOROVOD_FUSION_TRESHOLD": "1", "SMDATAPARALLEL_OPTIMIZE_SDP": "true"}
config = smppy.Config()
config.profiler = {"EnableCuda": "1", "EnablePerf": "1"}
"""
    assert verdicts(tmp_path, text) == {
        "HOROVOD_CYCLE_TIME": "works",
        "HOROVOD_NUM_NCCL_STREAMS": "differs",
        "HOROVOD_FUSION_TRESHOLD": "unknown",
        "SMDATAPARALLEL_OPTIMIZE_SDP": "differs",
        "smppy": "works",
        "smppy.Config": "works",
        "smppy.Config.profiler": "works",
        "EnablePerf": "refused",
    }


def test_scripts_of_shells(tmp_path: Path) -> None:
    text = """#!/bin/bash
# HOROVOD_TIMELINE=/tmp/x is a comment
export HOROVOD_CYCLE_TIME=5   # HOROVOD_AUTOTUNE too
HOROVOD_STALL_CHECK_DISABLE=1 /opt/bin/horovodrun -np 4 \\
    -H a:2,b:2 python train.py
echo "don't
end"
"""
    uses = found(tmp_path, text, "launch.sh")
    assert {use: each.lines for use, each in uses.items()} == {
        "HOROVOD_CYCLE_TIME": (3,),
        "HOROVOD_STALL_CHECK_DISABLE": (4,),
        "horovodrun": (4,),
    }
    assert set(verdicts(tmp_path, text, "launch")) == set(uses)  # by its first line


def launched(folder: Path, text: str, name: str = "launch.sh") -> list[str]:
    """Verdicts on lines with horovodrun, in their order, with what is said first."""
    path = folder / name
    path.write_text(text)
    uses = [each for each in check([path]) if each.text == "horovodrun"]
    lines = sorted((line, each.answer) for each in uses for line in each.lines)
    return [
        " ".join([answer.verdict.value, *(text for _, text in answer.notes[:1])])
        for _, answer in lines
    ]


NO_RANKS = "refused Horovod asks for it, as -np 4 or num_proc=4."
NO_COMMAND = "refused it is what each rank runs."
BAD_HOST = "refused an entry is a name or an IPv4 address, then a colon and the number of ranks."
JSRUN = "refused `farandole run` starts ranks by torchrun or mpirun."


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("horovodrun python t.py", NO_RANKS),
        ("horovodrun -np 0 python t.py", NO_RANKS),
        ("horovodrun -np 4", NO_COMMAND),
        ("horovodrun -np 4 > log 2>&1", NO_COMMAND),
        ("horovodrun -np 4 python t.py 2> log", "works"),
        ("horovodrun -np 4 && python t.py", NO_COMMAND),
        ("horovodrun -np 4 -H h1:1 python t.py", "refused the hosts take 1 together, h1:1."),
        ("(horovodrun -np 4 --jsrun python t.py)", JSRUN),
        ("( horovodrun -np 4 --jsrun python t.py )", JSRUN),
        ("x=$(horovodrun -np 4 --jsrun python t.py)", JSRUN),
        ("cd x; horovodrun -np 4 --jsrun python t.py | tee log", JSRUN),
        ("a && sudo -E time A=1 horovodrun -np 4 --jsrun python t.py &", JSRUN),
        ("if horovodrun -np 4 --jsrun python t.py; then echo; fi", JSRUN),
        ("horovodrun -np 4 python t.py; ls --jsrun", "works"),
        ("horovodrun -np $(nproc) -H $HOSTS python t.py", "works"),
        ("horovodrun -np $((N * 2)) python t.py", "works"),
        ("horovodrun -np `nproc` python t.py", "works"),
        ("horovodrun $FLAGS python t.py", "works"),
        ("horovodrun -np 2 $COMMAND", "works"),
        ('horovodrun "$@"', "works"),
        ("horovodrun --config-file c.yaml python t.py", "works"),
        ("horovodrun --check-build", "works"),
        ("horovodrun python t.py --help", NO_RANKS),
        ("bash -c 'horovodrun -np 4 --jsrun python t.py'", JSRUN),
        ('RUN="horovodrun -np 4 --jsrun"', JSRUN),
        ('RUN="horovodrun -np 4"', "works"),
        ('[ "$x" = horovodrun ] && horovodrun -np 4 --jsrun python t.py', JSRUN),
        ("echo horovodrun starts; horovodrun -np 4", NO_COMMAND),
        ("which horovodrun", "works"),
        ("command -v horovodrun > /dev/null || exit 1", "works"),
        ("horovodrun -np 2 --mpi-args='-x A;B' python t.py", "works"),
    ],
)
def test_lines_of_horovodrun(tmp_path: Path, line: str, verdict: str) -> None:
    assert launched(tmp_path, line) == [verdict]


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("run(['horovodrun', '-np', '2', '--jsrun', 'python', 't.py'])", [JSRUN]),
        ("run(('sudo', '/opt/bin/horovodrun', '-np', str(n), '--jsrun', a))", [JSRUN]),
        ("run(['horovodrun', '-np', f'{n}', *flags, 'python'])", ["works"]),
        ("run(['horovodrun', *flags, 'python', 't.py'])", ["works"]),
        ("c = ['horovodrun', '-np', '2']\nc += ['python', 't.py']", ["works"]),
        ("c = ['horovodrun', 'python', 't.py']", [NO_RANKS]),
        ("c = ['horovodrun'] + rest", ["works"]),
        ("system('horovodrun -np 1 -H \"a\\nb\" python t.py')", ["works"]),
        ("run(['horovodrun', '-np', '2', '-H', 'a\\nb', 'python', 't.py'])", [BAD_HOST]),
        ("c = ['horovodrun', 0x" + "f" * 9999 + "]", ["works"]),
        ("system('A=1 sudo horovodrun -np 4 --jsrun python t.py')", [JSRUN]),
        ("system(f'horovodrun -np {n} --jsrun python t.py')", [JSRUN]),
        ("system('horovodrun -np %d python t.py' % n)", ["works"]),
        ("system('horovodrun -np {} python t.py'.format(n))", ["works"]),
        ("system('horovodrun -np ' + str(n) + ' --jsrun python t.py')", [JSRUN]),
        ("if name in ('horovodrun', 'mpirun'): pass", ["works"]),
        ('"""horovodrun -np 4 starts it."""\nraise ValueError("horovodrun is missing")', []),
    ],
)
def test_lines_of_horovodrun_in_python(tmp_path: Path, text: str, verdicts: list[str]) -> None:
    assert launched(tmp_path, text, "train.py") == verdicts


@pytest.mark.system
def test_notebooks(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["import horovod.tensorflow"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!horovodrun -np 2 x.py"]},
        {"cell_type": "code", "source": "import horovod.torch as hvd\nhvd.init()"},
    ]
    uses = found(tmp_path, json.dumps({"cells": cells}), "note.ipynb")
    assert {use: each.lines for use, each in uses.items()} == {
        "horovodrun": (2,),
        "horovod.torch": (3,),
        "horovod.torch.init": (4,),
    }
    cells = [
        {"cell_type": "code", "source": "%%sh\nhorovodrun -np 2 x\nexport HOROVOD_AUTOTUNE=1"},
        {"cell_type": "code", "source": "%%html\n<b>horovodrun</b>"},
        {"cell_type": "code", "source": ["x = !ls\n", "?print\n", "import smppy\n", "smppy?"]},
        {"cell_type": "code", "source": "if smppy:\n    !HOROVOD_TIMELINE=x python y.py"},
        {"cell_type": "code", "source": "print('loss=%f' %\n smppy.Config())"},
        {"cell_type": "code"},
    ]
    assert verdicts(tmp_path, json.dumps({"cells": cells}), "shell.ipynb") == {
        "horovodrun": "works",
        "HOROVOD_AUTOTUNE": "differs",
        "HOROVOD_TIMELINE": "works",
        "smppy": "works",
        "smppy.Config": "works",
    }
    exported = "# Databricks notebook source\n# MAGIC %sh horovodrun -np 2 x.py\n"
    assert list(verdicts(tmp_path, exported)) == ["horovodrun"]
    program = "import subprocess\nsubprocess.run(['horovodrun', '-np', '2'])\n"
    assert list(verdicts(tmp_path, program)) == ["horovodrun"]


def test_estimators_of_sagemaker(tmp_path: Path) -> None:
    text = """
from sagemaker.pytorch import PyTorch
distribution = {"smdistributed": {"dataparallel": {"enabled": True}}}
PyTorch(
    entry_point="train.py", train_instance_count=2, role=role, instance_cuont=2,
    distribution={"mpi": {"enabled": True, "processes": 2}},
)
PyTorch(distributions={"parameter_server": {"enabled": True}})
PyTorch(distribution={"torch_distributed": {"enabled": flag}})
PyTorch(distribution={"pytorchddp": True})
"""
    uses = verdicts(tmp_path, text)
    assert {use.removeprefix("sagemaker.pytorch."): verdict for use, verdict in uses.items()} == {
        "distribution={'smdistributed': {'dataparallel': {'enabled': True}}}": "works",
        "PyTorch(entry_point)": "works",
        "PyTorch(train_instance_count)": "differs",
        "PyTorch(role)": "differs",
        "PyTorch(instance_cuont)": "unknown",
        "PyTorch(distribution)": "works",
        "distribution={'mpi': {'enabled': True, 'processes': 2}}": "refused",
        "PyTorch(distributions)": "differs",
        "distributions={'parameter_server': {'enabled': True}}": "refused",
        "distribution={'torch_distributed': {'enabled': flag}}": "differs",
        "distribution={'pytorchddp': True}": "refused",
    }


@pytest.mark.parametrize(
    "distribution",
    [
        '{"mpi": True}',
        '{"mpi": {"enabled": True, "processes_per_host": 0}}',
        '{"mpi": {"enabled": True, "processes_per_host": "two"}}',
        '{"smdistributed": {"dataparallel": {"enabled": "yes"}}}',
        '{"smdistributed": True}',
        '{"ddp": {"enabled": True}}',
        '{"mpi": {"enabled": True}, "torch_distributed": {"enabled": True}}',
        '"ddp"',
        '["mpi"]',
    ],
)
def test_distributions_that_start_no_ranks_do_not_work(tmp_path: Path, distribution: str) -> None:
    text = f"from sagemaker.pytorch import PyTorch\nPyTorch(distribution={distribution})"
    (answer,) = (
        each.answer
        for use, each in found(tmp_path, text).items()
        if use.startswith("distribution=")
    )
    assert answer.verdict is not Verdict.WORKS
    assert "fix" in dict(answer.notes)


def test_the_old_name_of_distribution_is_told(tmp_path: Path) -> None:
    text = """
from sagemaker.pytorch import PyTorch
PyTorch(distributions={"mpi": {"enabled": True}})
PyTorch(distribution=None)
"""
    uses = found(tmp_path, text)
    answer = uses["distributions={'mpi': {'enabled': True}}"].answer
    assert answer.verdict is Verdict.DIFFERS
    assert answer.notes[0] == ("here", "its name is distribution")
    assert not [use for use in uses if use.startswith("distribution=")]


# The command.


def test_a_folder_and_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("import horovod.torch as hvd\nhvd.init()\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "b.py").write_text("import horovod.tensorflow")
    (tmp_path / "data.csv").write_text("import horovod.tensorflow")
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/a.py:1: works: horovod.torch",
        f"{tmp_path}/a.py:2: works: horovod.torch.init",
        "works: 2",
    ]
    (tmp_path / "c.py").write_text("import horovod.mxnet")
    assert main(["check", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"{tmp_path}/c.py:1: refused: horovod.mxnet",
        "    why: other frameworks",
        "    fix: train with torch",
        "works: 2, refused: 1",
    ]


def test_a_file_of_a_folder_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.py").write_text("import smppy")
    first, second = check([tmp_path])
    assert (first.text, first.answer.verdict) == ("the file", Verdict.REFUSED)
    assert (second.text, second.answer.verdict) == ("smppy", Verdict.WORKS)


def test_nothing_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("print(1)")
    assert main(["check", str(tmp_path / "a.py")]) == 0
    assert capsys.readouterr().out == "nothing of these libraries is used\n"


def test_without_the_package_of_names_a_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "a.py").write_text("import smppy")
    assert main(["check", str(tmp_path)]) == 0
    assert "pip install ./python/compat" in capsys.readouterr().out
    (tmp_path / "a.py").write_text("import torch")
    assert main(["check", str(tmp_path)]) == 0
    assert "compat" not in capsys.readouterr().out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("from smdebug import tensorflow")
    assert main(["check", "--json", str(tmp_path / "a.py")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["works"]
    assert not found["needs_compat"]
    (use,) = found["uses"]
    assert (use["path"], use["lines"]) == (str(tmp_path / "a.py"), [1])
    assert (use["use"], use["verdict"]) == ("smdebug.tensorflow", "refused")
    assert use["notes"][1] == {"label": "fix", "text": "smdebug.pytorch"}


def test_a_file_of_python_2_is_refused(tmp_path: Path) -> None:
    (use,) = found(tmp_path, "import horovod.torch\nprint 'loss'\n").values()
    assert (use.lines, use.answer.verdict) == ((2,), Verdict.REFUSED)


@pytest.mark.parametrize("text", ["(" * 500 + ")" * 500, "x = " + "1+" * 20000 + "1"])
def test_a_file_that_is_too_deep_is_refused(tmp_path: Path, text: str) -> None:
    (use,) = found(tmp_path, text).values()
    assert "cannot read it" in use.answer.notes[0][1]


@pytest.mark.parametrize(
    "content",
    [b"\xef\xbb\xbfimport smppy\r\n", b"# -*- coding: latin-1 -*-\nimport smppy # \xe9\n"],
)
def test_encodings(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(content)
    assert [each.text for each in check([path])] == ["smppy"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("none.py", None),
        ("bytes.py", b"\xff\xfe\x00"),
        ("note.ipynb", b"{}"),
        ("note.ipynb", b"no json"),
        ("note.ipynb", b"[1]"),
        ("note.ipynb", b'{"cells": [{"cell_type": "code", "source": "\\ud800"}]}'),
        ("note.ipynb", b"[" * 9999),
        ("coding.py", b"# coding: rot13\nvzcbeg fzccl\n"),
        ("x" * 300, None),
        ("null.py", b"x = 1\0"),
    ],
)
def test_what_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    status = main(["check", str(path)])
    errors = capsys.readouterr().err
    if name == "null.py":
        assert status == 1  # some versions of Python say that it is no Python
    else:
        assert status == 2
        assert "[migrate-file]" in errors


def test_names_that_are_no_utf8_are_shown_with_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / os.fsdecode(b"a\xff\x1b[31m.py")
    path.write_text("import smppy\n")
    assert main(["check", str(tmp_path)]) in (0, 1)
    assert r"a\udcff\x1b[31m.py:1:" in capsys.readouterr().out


def test_misuse_ends_with_2() -> None:
    for arguments in ([], ["check"], ["chek", "x"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2


@pytest.mark.system
def test_the_command_imports_nothing_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import horovod.torch as hvd\nraise SystemExit(7)\n")
    command = [sys.executable, "-m", "farandole", "migrate", "check", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("works: 1\n")


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").rglob("*.py")), ids=str)
def test_our_examples_use_nothing_that_is_refused(path: Path) -> None:
    bad = [each.text for each in check([path]) if not each.answer.is_good]
    assert not bad


# The tables.


def rows_of(page: str, kind: type[Row]) -> list[str]:
    return [row.line for row in PAGES[page].ROWS if isinstance(row, kind)]


def lines_below(page: str, heading: str) -> list[str]:
    """Those of the first table with this head."""
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    table = text.split(f"{heading}\n")[1].split("\n\n")[0]
    return table.splitlines()[1:]


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_have_the_tables(page: str) -> None:
    text = (REPOSITORY / "docs" / f"{page}.md").read_text()
    for row in PAGES[page].ROWS:
        assert row.line in text.splitlines()
    original = {"horovod": "Horovod", "smddp": "SMDDP", "smdebug": "original"}[page]
    assert lines_below(page, f"| | {original} | here |") == rows_of(page, Difference)
    assert lines_below(page, "| | why | instead |") == rows_of(page, Refusal)
    if page == "smdebug":
        assert lines_below(page, "| variable | meaning |") == rows_of(page, Variable)


def test_the_page_of_torch_has_its_table() -> None:
    lines = lines_below("migrate", "| torch | Farandole | what it gains |")
    assert lines == [row.line for row in torch_names.ROWS]


ROWS = [row for page in (*PAGES.values(), torch_names) for row in page.ROWS]
PLAIN = sorted(
    {
        use
        for row in ROWS
        for use in row.uses
        if re.fullmatch(rf"({'|'.join(TOPS)})(\.[\w.]+)?", use)
    }
)
CALLS: dict[str, tuple[object, ...]] = {"horovod.spark.run_elastic": (print,)}
"""Refused functions, and what they are called with."""


def is_refused(name: str) -> bool:
    answer = Judge(Known()).answer(Use(1, name))
    return answer is not None and answer.verdict is Verdict.REFUSED


@pytest.mark.parametrize("name", [name for name in PLAIN if is_refused(name)])
def test_what_is_refused_raises_not_supported(name: str) -> None:
    """Where this fails, the name is there now: remove it from the refusals of its page."""
    if name in CALLS:
        module, _, function = name.rpartition(".")
        with pytest.raises(farandole.NotSupported):
            getattr(importlib.import_module(module), function)(*CALLS[name])
        return
    assert not Known().has(name), f"{name} can be imported"


@pytest.mark.parametrize("name", [name for name in PLAIN if not is_refused(name)])
def test_what_differs_is_there(name: str) -> None:
    assert Known().has(name)


def test_patterns_are_about_something() -> None:
    """A pattern of a call is about a function that there is, and an argument that it takes."""
    known = Known()
    modules = json.loads(Path(farandole.__file__).with_name("migrate").joinpath(
        "known_names.json").read_text())  # fmt: skip
    names = [f"{module}.{name}" for module, inside in modules.items() for name in inside]
    names += [f"{name}.{method}" for name in names for method in known.names_in(name)]
    for row in ROWS:
        for use in row.uses:
            match = re.fullmatch(r"([^(]+)\((\w+)(?:=.*)?\)", use)
            if match is None or match[1].startswith("*"):  # of any library
                continue
            pattern = Row("", (f"{match[1]}({match[2]})",))
            takers = [name for name in names if {match[2], "*"} & set(known.arguments(name) or ())]
            assert any(pattern.is_about(Use(1, name, match[2])) for name in takers), use
