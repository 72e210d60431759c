# SPDX-License-Identifier: Apache-2.0
"""horovod.run(): its arguments, mapped to run_function()."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.horovod.flags import Flags
from farandole.horovod.plan import is_elastic, plan_of
from farandole.run.function import run_function


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on ``num_proc`` ranks; their results, in rank order.

    Other arguments are the flags of horovodrun by the same names. ``executable`` is the Python of
    the ranks; ``np``, ``min_np``, ``max_np`` and ``network_interface`` are old names.

    Raises:
        RankError: a rank raised, or died.
        InvalidArgument: arguments exclude each other.
        NotSupported: ranks are to come and go.
    """
    num_proc = np if np is not None and num_proc == 1 else num_proc
    _tell_old_names(np=np, min_np=min_np, max_np=max_np, network_interface=network_interface)
    _check_pair("hosts", hosts, "hostfile", hostfile)
    _check_pair("use_gloo", use_gloo, "use_mpi", use_mpi)
    nics = network_interfaces or network_interface
    flags = Flags(
        num_proc=num_proc,
        min_num_proc=min_np if min_num_proc is None else min_num_proc,
        max_num_proc=max_np if max_num_proc is None else max_num_proc,
        slots=slots,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
        hosts=hosts,
        hostfile=hostfile,
        host_discovery_script=host_discovery_script,
        start_timeout=start_timeout,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        disable_cache=disable_cache or None,
        output_filename=output_filename,
        use_gloo=use_gloo,
        use_mpi=use_mpi,
        mpi_args=mpi_args,
        nics=[nics] if isinstance(nics, str) else nics,
    )
    if is_elastic(flags):
        raise NotSupported(
            sentences(
                "horovod-run-elastic",
                "horovod.run() was asked for ranks that come and go.",
                "a rank that is lost has no result to give back.",
                "put the function into a script that uses hvd.elastic.run, and start it with "
                "`horovodrun -np 4 --min-np 2 python train.py`.",
            )
        )
    plan = plan_of(flags)
    for note in plan.notes:
        warnings.warn(f"horovod.run(): without effect here: {note}", stacklevel=2)
    return run_function(
        func,
        args,
        kwargs,
        ranks=plan.ranks,
        options=plan.options if verbose else ["--quiet", *plan.options],
        variables=plan.variables,
        python=executable,
    )


def _tell_old_names(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            new = {"network_interface": "network_interfaces"}.get(
                name, name.replace("np", "num_proc")
            )
            warnings.warn(f"{name} is an old name of {new}", DeprecationWarning, stacklevel=3)


def _check_pair(first: str, one: object, second: str, other: object) -> None:
    if one and other:
        raise InvalidArgument(
            sentences(
                "horovod-run-both",
                f"horovod.run() got both {first} and {second}.",
                "they say the same in two ways, or exclude each other.",
                "pass one of them.",
            )
        )
