"""Protobuf's varints, one by one and as columns. Pure functions on bytes."""

import numpy as np
import pyarrow as pa

from penstock.arrow.buffers import Bytes, Ints
from penstock.errors import ProtocolError


def varint(number: int) -> bytes:
    """A whole number as a varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and the place after it. An IndexError where it is cut off or too long."""
    number = shift = 0
    while True:
        byte, at = data[at], at + 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError


def varints(values: Ints) -> pa.Array:
    """A column of varints. Each distinct number is encoded once: in practice they are few."""
    distinct, index = np.unique(values, return_inverse=True)
    return pa.array([varint(int(number)) for number in distinct], pa.binary()).take(pa.array(index))


def read_varints(u: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The number at each place, and the place after it. A number of 2**63 or more comes out negative; more than 64 bits
    are a ProtocolError.
    """
    byte = u.take(at, mode="clip").astype(np.int64)
    value, at, shift = byte & 127, at + 1, 7
    more = byte > 127
    while more.any():
        byte = np.where(more, u.take(at, mode="clip"), 0).astype(np.int64)
        value |= (byte & 127) << shift
        at = at + more
        if shift > 56 and (byte > 1).any():
            raise ProtocolError(f"S2 sent a number of more than 64 bits before byte {int(at[np.argmax(byte > 1)]):,}.")
        more, shift = byte > 127, shift + 7
    return value, at
