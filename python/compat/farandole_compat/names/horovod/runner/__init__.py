# SPDX-License-Identifier: Apache-2.0
"""horovod.run()."""

from farandole.horovod.function import run

__all__ = ["run"]
