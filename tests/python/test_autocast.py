# SPDX-License-Identifier: Apache-2.0
"""farandole.autocast is torch.autocast, and knows dtypes by name."""

from __future__ import annotations

import farandole
import pytest
import torch
from farandole import autocast


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bfloat16", torch.bfloat16),
        ("torch.bfloat16", torch.bfloat16),
        ("BF16", torch.bfloat16),
        ("float16", torch.float16),
        ("torch.float16", torch.float16),
        ("fp16", torch.float16),
        ("torch.half", torch.float16),
        (torch.float16, torch.float16),
        (None, torch.bfloat16),
    ],
)
def test_matrix_products_run_in_the_dtype(
    name: torch.dtype | str | None, dtype: torch.dtype
) -> None:
    a = torch.ones(2, 2)
    with autocast("cpu", name):
        assert (a @ a).dtype == dtype
        with autocast("cpu", enabled=False):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == dtype
    assert (a @ a).dtype == torch.float32


def test_it_decorates_and_is_torchs() -> None:
    @autocast("cpu", "bf16")
    def product(a: torch.Tensor) -> torch.Tensor:
        return a @ a

    assert product(torch.ones(2, 2)).dtype == torch.bfloat16
    assert isinstance(autocast("cpu"), torch.autocast)


def test_the_device_may_be_left_out() -> None:
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    a = torch.ones(2, 2, device=device)
    with autocast(dtype="bfloat16"):
        assert (a @ a).dtype == torch.bfloat16
    with autocast(torch.device("cpu")):
        assert (a.cpu() @ a.cpu()).dtype == torch.bfloat16


def test_a_name_that_is_none_is_told() -> None:
    with pytest.raises(farandole.InvalidArgument, match="float16 or bfloat16"):
        autocast("cpu", "torch.float8")
