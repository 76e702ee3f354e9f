"""When a certificate expires, read from its bytes. Pure: Python tells that only of certificates that it trusts."""

from datetime import UTC, datetime

from penstock.errors import ProtocolError

_SEQUENCE, _VERSION, _UTC_TIME, _TIME = 0x30, 0xA0, 0x17, 0x18


def expires(der: bytes) -> float:
    """The end of a certificate's validity, in seconds since 1970. A ProtocolError where the bytes are none."""
    try:
        _, whole, _ = _part(der)
        kind, signed, _ = _part(whole)
        if kind != _SEQUENCE:
            raise ValueError("no sequence")
        kind, _, rest = _part(signed)
        if kind == _VERSION:  # absent in version 1
            _, _, rest = _part(rest)
        for _ in range(2):  # the algorithm of the signature, and the issuer
            _, _, rest = _part(rest)
        _, validity, _ = _part(rest)
        _, _, after_start = _part(validity)
        kind, text, _ = _part(after_start)
        pattern = {_UTC_TIME: "%y%m%d%H%M%SZ", _TIME: "%Y%m%d%H%M%SZ"}[kind]
        return datetime.strptime(text.decode("ascii"), pattern).replace(tzinfo=UTC).timestamp()
    except (ValueError, IndexError, KeyError, OverflowError):
        raise ProtocolError("the server sent a certificate that cannot be read.") from None


def _part(data: bytes) -> tuple[int, bytes, bytes]:
    """The first element of DER: its kind, its content, and what follows."""
    kind, length, at = data[0], data[1], 2
    if length & 0x80:
        count = length & 0x7F
        if count > 4:
            raise ValueError("too long")
        length, at = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if len(data) < at + length:
        raise ValueError("cut off")
    return kind, data[at : at + length], data[at + length :]
