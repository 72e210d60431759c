# SPDX-License-Identifier: Apache-2.0
"""The memory that reading a pickle takes is in proportion to the pickle."""

from __future__ import annotations

import pickle
import pickletools

_OPCODES = {ord(each.code): each for each in pickletools.opcodes}
_LENGTH_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_PUT, _LONG_BINPUT, _STOP = ord("p"), ord("r"), ord(".")
_LINES = {"GLOBAL": 2, "INST": 2}
"""Arguments of more than one line."""
_OTHER = -1


def _step(code: int) -> int:
    """From an opcode to the next one, or _OTHER: it has to be looked at."""
    if code not in _OPCODES or code in (_PUT, _LONG_BINPUT, _STOP):
        return _OTHER
    argument = _OPCODES[code].arg
    if argument is None:
        return 1
    return 1 + argument.n if argument.n >= 0 else _OTHER


_STEPS = [_step(code) for code in range(256)]


def check_memo(data: bytes) -> None:
    """Refuse places in the unpickler's memo that no pickle of this length needs.

    The memo is an array: a pickle of nine bytes can make it 32 GiB large.

    Raises:
        pickle.UnpicklingError: it has such a place, or it does not end.
    """
    at = 0
    try:
        while True:
            code = data[at]
            step = _STEPS[code]
            if step != _OTHER:
                at += step
            elif code == _STOP:
                return
            else:
                at = _after(data, at + 1, code)
    except IndexError:
        raise pickle.UnpicklingError("pickle data was truncated") from None


def _after(data: bytes, begin: int, code: int) -> int:
    """Where the argument of an opcode ends."""
    if code not in _OPCODES:
        raise pickle.UnpicklingError(f"it has the unknown opcode {code:#04x}")
    opcode = _OPCODES[code]
    assert opcode.arg is not None
    if opcode.arg.n in _LENGTH_BYTES:
        end = begin + _LENGTH_BYTES[opcode.arg.n]
        return end + int.from_bytes(data[begin:end], "little")
    end = begin + max(opcode.arg.n, 0)
    if opcode.arg.n == pickletools.UP_TO_NEWLINE:
        for _ in range(_LINES.get(opcode.name, 1)):
            end = data.find(b"\n", end) + 1
            if end == 0:
                raise pickle.UnpicklingError("pickle data was truncated")
    if code in (_PUT, _LONG_BINPUT):
        argument = data[begin:end]
        place = int(argument) if code == _PUT else int.from_bytes(argument, "little")
        if place > len(data):
            raise pickle.UnpicklingError(f"it puts object {place}, and has {len(data)} bytes")
    return end
