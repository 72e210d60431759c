# SPDX-License-Identifier: Apache-2.0
"""What a script uses, as it was found in its text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Use:
    """A name on a line of a file, or one argument of a call."""

    line: int
    """From 1; of a notebook, in its code cells one after the other."""
    name: str
    """In full, as "horovod.torch.allreduce"; a variable or a command by its own name."""
    argument: str | None = None
    """Of a call: its name, and ``value``."""
    value: str | None = None
    """A constant, or the last part of a name; None if it is computed. Of a launcher: its words."""
    beside: frozenset[str] = frozenset()
    """All arguments of the call that are not None."""
    is_module: bool = False
    """Whether only a module can be meant, as in ``import horovod.torch``."""

    @property
    def text(self) -> str:
        """As reports show it."""
        if self.argument is None:
            return self.name
        given = self.argument if self.value is None else f"{self.argument}={self.value}"
        return f"{self.name}({given})"
