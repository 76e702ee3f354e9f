"""The frames of an S2 session: three bytes of length, a byte of flags, and a message, perhaps compressed. Knows no
sockets, and nothing of what is in the messages.
"""

import gzip
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.clients.answers import an_object
from penstock.errors import OptionError, ProtocolError

_TERMINAL, _ZSTD, _GZIP = 0x80, 0x20, 0x40
# Messages below _SMALL are not compressed. S2 sends none above _LARGE.
_SMALL, _LARGE = 1024, 4 << 20


class Frame(NamedTuple):
    """One message of a session. A terminal one ends the session and says why."""

    body: bytes
    terminal: bool


class Failure(NamedTuple):
    """Why a session ended: an HTTP status and a JSON answer."""

    status: int
    answer: dict[str, Any]


class Deframer:
    """Splits the bytes of a session, which may arrive in any pieces, into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with `data`."""
        data, at = self._rest + data if self._rest else data, 0
        while len(data) - at >= 4:
            end = at + 3 + int.from_bytes(data[at : at + 3], "big")
            if not at + 4 <= end <= at + 4 + _LARGE:
                raise ProtocolError(
                    f"S2 sent a frame of {end - at - 3:,} bytes, beginning with {data[at : at + 20]!r}."
                )
            if end > len(data):
                break
            flags, body = data[at + 3], data[at + 4 : end]
            yield Frame(_decompress(body, flags), bool(flags & _TERMINAL))
            at = end
        self._rest = data[at:]

    @property
    def complete(self) -> bool:
        """Whether the bytes so far end at the end of a frame."""
        return not self._rest


def failure(frame: Frame) -> Failure:
    """The reason in a terminal frame. An answer that is no JSON becomes its message."""
    try:
        answer = an_object(frame.body[2:] or b"{}", "S2")
    except ProtocolError:
        answer = {"message": frame.body[2:100].decode(errors="replace")}
    return Failure(int.from_bytes(frame.body[:2], "big"), answer)


def to_frame(body: bytes, compression: str = "none") -> bytes:
    """A message as a frame. Small messages are not compressed."""
    flags = 0
    if len(body) >= _SMALL:
        if compression == "zstd":
            flags, body = _ZSTD, _zstd().ZstdCompressor().compress(body)
        elif compression == "gzip":
            flags, body = _GZIP, gzip.compress(body, 1)
    return (len(body) + 1).to_bytes(3, "big") + bytes([flags]) + body


def _decompress(body: bytes, flags: int) -> bytes:
    if not flags & (_ZSTD | _GZIP):
        return body
    message = _from_zstd(body) if flags & _ZSTD else _from_gzip(body)
    if message is None:
        how = "zstd" if flags & _ZSTD else "gzip"
        raise ProtocolError(f"S2 sent {len(body):,} bytes that are no {how} of at most {_LARGE:,}: {body[:20]!r}.")
    return message


def _from_zstd(body: bytes) -> bytes | None:
    zstd = _zstd()
    try:
        if zstd.frame_content_size(body) > _LARGE:
            return None
        message: bytes = zstd.ZstdDecompressor().decompress(body, max_output_size=_LARGE)
        return message
    except zstd.ZstdError:
        return None


def _from_gzip(body: bytes) -> bytes | None:
    decompressor = zlib.decompressobj(wbits=31)
    try:
        message = decompressor.decompress(body, _LARGE)
    except zlib.error:
        return None
    return message if decompressor.eof else None


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise OptionError("compression=zstd needs the extra: pip install 'penstock[s2]'") from None
    return zstandard
