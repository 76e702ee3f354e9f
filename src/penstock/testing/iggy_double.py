"""Stands in for a server of Apache Iggy 0.9, which no registry has: its TCP protocol, to the real client, with faults.

Streams, topics, partitions, messages and consumer offsets in memory; login; what can go wrong. Nothing is checked that
a client of ours could not get wrong. The same tests run against a real server where IGGY_TEST_ADDRESS names one.
"""

import contextlib
import itertools
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from penstock.testing.nats_server import free_port

HEADER, PROTOCOL, NEVER = 256, 11264, 2**64 - 1
REGISTER, READ, SEND, STORE_OFFSET, DELETE_OFFSET = 1, 2, 160, 161, 162
NOT_FOUND_STREAM, NOT_FOUND_TOPIC, NOT_FOUND_PARTITION, EXISTS_STREAM, EXISTS_TOPIC = 1009, 2010, 3007, 1012, 2013
_ids = itertools.count(1)


@dataclass
class Message:
    id: int
    payload: bytes
    headers: bytes
    origin: int
    offset: int = 0
    time: int = 0


@dataclass
class Partition:
    id: int
    created: int = field(default_factory=lambda: time.time_ns() // 1000 + next(_ids))
    messages: list[Message] = field(default_factory=list)
    next: int = 0
    offsets: dict[bytes, int] = field(default_factory=dict)

    def purge(self) -> None:
        self.messages, self.next, self.offsets = [], 0, {}

    def append(self, message: Message) -> None:
        message.offset, message.time = self.next, time.time_ns() // 1000
        self.next += 1
        self.messages.append(message)


@dataclass
class Topic:
    id: int
    name: str
    partitions: list[Partition]
    options: bytes = b""
    expiry: int = NEVER
    size: int = NEVER
    created: int = field(default_factory=lambda: time.time_ns() // 1000 + next(_ids))


@dataclass
class Stream:
    id: int
    name: str
    topics: dict[int, Topic] = field(default_factory=dict)
    created: int = field(default_factory=lambda: time.time_ns() // 1000 + next(_ids))


class Refused(Exception):  # noqa: N818 - an answer, not a mistake of the double
    def __init__(self, code: int):
        self.code = code


class IggyDouble:
    """A server on a free port. `faults` are what befalls sends, in turn: lose_reply (appended, then the connection is
    cut), lose_request (cut before), transient (57, as long as it is asked again), refuse:CODE, hang (no answer),
    late:SECONDS (cut, and appended so much later), later (cut, and appended after the next one), freeze:SECONDS (nobody
    is answered for so long, and the request is appended a moment after that). `poll_faults` the same for polls: cut,
    empty (as if it could not read), skip:COUNT (it cannot read the first few), hole:COUNT (a few in the middle).
    `narrow`: a poll sees only as many offsets as it asks for messages. `brief`: what a poll left out is there for the
    next one from the same offset.
    """

    def __init__(self, username: str = "iggy", password: str = "iggy", token: str = "pat", port: int = 0):
        self.credentials, self.token = (username, password), token
        self.protocol = PROTOCOL
        self.streams: dict[int, Stream] = {}
        self.faults: list[str] = []
        self.poll_faults: list[str] = []
        self.polls = self.sends = self.polled = 0
        self.narrow = self.brief = False
        self._left_out: set[tuple[int, int, int]] = set()
        self.pace = 0.0  # seconds that each send takes
        self._frozen = 0.0
        self._held: list[bytes] = []
        self.lock = threading.RLock()
        self._listener = socket.create_server(("127.0.0.1", port or free_port()))
        self.port: int = self._listener.getsockname()[1]
        self._clients: set[socket.socket] = set()
        self._senders: set[socket.socket] = set()
        self._stopped = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def senders(self) -> int:
        """How many open connections have sent messages. Whoever wrote and was killed is none any more."""
        return len(self._senders)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End it; what it holds stays in the object."""
        self._stopped = True
        self._end(self._listener)
        for client in list(self._clients):
            self._end(client)

    def start(self) -> None:
        """Listen again, on the same port, with all that was there."""
        self._stopped = False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def topic(self, stream: str, topic: str) -> Topic:
        found = next(s for s in self.streams.values() if s.name == stream)
        return next(t for t in found.topics.values() if t.name == topic)

    def trim(self, stream: str, topic: str, partition: int, count: int) -> None:
        """Forget the first messages of a partition, as retention does."""
        with self.lock:
            del self.topic(stream, topic).partitions[partition].messages[:count]

    def gap(self, stream: str, topic: str, partition: int, count: int) -> None:
        """Skip offsets, as after a recovery."""
        with self.lock:
            self.topic(stream, topic).partitions[partition].next += count

    def lose(self, stream: str, topic: str, partition: int, count: int) -> None:
        """Forget the last messages of a partition, confirmed as they are, as a crash does before they are on disk."""
        with self.lock:
            found = self.topic(stream, topic).partitions[partition]
            del found.messages[-count:]
            found.next -= count

    def purge(self, stream: str, topic: str) -> None:
        """Forget all messages of a topic. Offsets begin at 0 again; when it was made does not change."""
        with self.lock:
            for partition in self.topic(stream, topic).partitions:
                partition.purge()

    @staticmethod
    def _end(end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()

    def _accept(self) -> None:
        listener = self._listener
        while not self._stopped:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._clients.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        file = client.makefile("rb", buffering=1 << 20)
        try:
            while True:
                head = file.read(HEADER)
                if len(head) < HEADER:
                    return
                (size,) = struct.unpack_from("<I", head, 48)
                operation, code = head[176], struct.unpack_from("<I", head, 196)[0]
                if operation == SEND:
                    self._senders.add(client)
                reply = self._answer(operation, code, file.read(size - HEADER))
                if reply is None:
                    return
                client.sendall(self._framed(head, *reply))
                if reply[2] == 13:
                    return
        except OSError:
            pass
        finally:
            self._clients.discard(client)
            self._senders.discard(client)
            self._end(client)
            file.close()

    def _framed(self, head: bytes, status: int, body: bytes, command: int = 8, reason: int = 0) -> bytes:
        out = bytearray(HEADER)
        struct.pack_into("<I", out, 48, HEADER + len(body))
        out[60] = command
        out[160:176] = head[128:144]
        if command == 13:
            struct.pack_into("<II", out, 144, self.protocol, self.protocol)
            out[255] = reason
        else:
            out[200:208], out[208] = head[168:176], head[176]
            struct.pack_into("<I", out, 216, status)
        return bytes(out) + body

    def _store_later(self, body: bytes, seconds: float) -> None:
        timer = threading.Timer(seconds, self._send, [body])
        timer.daemon = True
        timer.start()

    def _answer(self, operation: int, code: int, body: bytes) -> Any:
        if time.monotonic() < self._frozen:
            time.sleep(max(0.0, self._frozen - time.monotonic()))
        if operation == SEND:
            time.sleep(self.pace)
        if operation == SEND and self.faults:
            fault = self.faults[0] if self.faults[0].startswith("transient") else self.faults.pop(0)
            if fault == "lose_request":
                return None
            if fault == "lose_reply":
                self._send(body)
                return None
            if fault.startswith("transient"):
                left = int(fault.partition(":")[2] or 1) - 1
                self.faults[:1] = [f"transient:{left}"] if left else []
                return 57, b"", 8
            if fault.startswith("refuse"):
                return int(fault.partition(":")[2]), b"", 8
            if fault == "hang":
                time.sleep(3)
                return None
            if fault == "later":
                self._held.append(body)
                return None
            if fault.startswith("late"):
                self._store_later(body, float(fault.partition(":")[2]))
                return None
            if fault.startswith("freeze"):
                seconds = float(fault.partition(":")[2])
                self._frozen = time.monotonic() + seconds
                self._store_later(body, seconds + 0.1)
                time.sleep(seconds)
                return None
        fault = self.poll_faults.pop(0) if operation == READ and code == 100 and self.poll_faults else ""
        if fault == "cut":
            return None
        with self.lock:
            try:
                if operation == REGISTER:
                    return self._register(body)
                if operation == READ:
                    return 0, self._poll(Reader(body), fault) if code == 100 else self._read(code, Reader(body)), 8
                if operation == SEND:
                    answer = self._send(body)
                    while self._held:
                        self._send(self._held.pop())
                    return 0, answer, 8
                return 0, struct.pack("<I", 0) + self._change(operation, Reader(body)), 8
            except Refused as refused:
                if operation in (READ, SEND):
                    return refused.code, b"", 8
                return 0, struct.pack("<III", 1, 0, refused.code), 8

    def _register(self, body: bytes) -> Any:
        reader = Reader(body)
        protocol = reader.number("I")
        if protocol != self.protocol:
            return 0, b"", 13, 14
        reader.name()
        reader.name()
        user = reader.name()
        rest = reader.rest()
        password = rest[1 : 1 + rest[0]].decode() if rest else ""
        if (user, password) != self.credentials and user != self.token:
            return 0, b"", 13, 9
        name = b"0.9.0"
        return 0, struct.pack("<IIQI", 0, 1, next(_ids), self.protocol) + bytes([len(name)]) + name, 8

    def _read(self, code: int, body: "Reader") -> bytes:
        if code == 1:
            return b""
        if code == 12:
            return (
                text("cluster") + struct.pack("<I", 1) + text("node") + text("127.0.0.1")
                + struct.pack("<HHHHBB", self.port, 0, 0, 0, 0, 0)
            )  # fmt: skip
        if code == 200:
            stream = self._find_stream(body.ident())
            return b"" if stream is None else self._stream(stream) + b"".join(map(self._topic, stream.topics.values()))
        if code == 201:
            return b"".join(map(self._stream, self.streams.values()))
        if code in (300, 301):
            stream = self._find_stream(body.ident())
            if stream is None:
                return b""
            if code == 301:
                return b"".join(map(self._topic, stream.topics.values()))
            topic = self._find_topic(stream, body.ident())
            return b"" if topic is None else self._topic(topic) + b"".join(map(self._partition, topic.partitions))
        raise Refused(3)

    def _change(self, operation: int, body: "Reader") -> bytes:
        if operation == 128:
            name = body.name()
            if any(stream.name == name for stream in self.streams.values()):
                raise Refused(EXISTS_STREAM)
            made = Stream(len(self.streams), name)
            self.streams[made.id] = made
            return self._stream(made)
        if operation in (STORE_OFFSET, DELETE_OFFSET):
            consumer, partition = self._consumer(body)
            if partition is None:
                raise Refused(NOT_FOUND_PARTITION)
            if operation == STORE_OFFSET:
                partition.offsets[consumer] = body.number("Q")
            else:
                partition.offsets.pop(consumer, None)
            return b""
        stream = self._find_stream(body.ident())
        if stream is None:
            raise Refused(NOT_FOUND_STREAM)
        if operation == 130:
            del self.streams[stream.id]
            return b""
        if operation == 132:
            count, name = body.number("I"), body.name()
            if any(topic.name == name for topic in stream.topics.values()):
                raise Refused(EXISTS_TOPIC)
            number = max(stream.topics, default=-1) + 1
            stream.topics[number] = Topic(number, name, [Partition(i) for i in range(count)], body.rest())
            topic = stream.topics[number]
            return self._topic(topic) + b"".join(map(self._partition, topic.partitions))
        found = self._find_topic(stream, body.ident())
        if found is None:
            raise Refused(NOT_FOUND_TOPIC)
        if operation == 134:
            del stream.topics[found.id]
        elif operation == 135:
            for partition in found.partitions:
                partition.purge()
        elif operation == 136:
            at = len(found.partitions)
            found.partitions += [Partition(at + i) for i in range(body.number("I"))]
        elif operation == 137:
            del found.partitions[-body.number("I") :]
        else:
            raise Refused(3)
        return b""

    def _send(self, data: bytes) -> bytes:
        (length,) = struct.unpack_from("<I", data)
        body = Reader(data[4 : 4 + length])
        stream = self._find_stream(body.ident())
        if stream is None:
            raise Refused(NOT_FOUND_STREAM)
        topic = self._find_topic(stream, body.ident())
        if topic is None:
            raise Refused(NOT_FOUND_TOPIC)
        kind, size = body.number("B"), body.number("B")
        number = struct.unpack("<I", body.take(size))[0]
        assert kind == 2, "the client resolves other ways to partition by itself"
        partition = next((p for p in topic.partitions if p.id == number), None)
        if partition is None:
            raise Refused(NOT_FOUND_PARTITION)
        batch = data[4 + length :]
        origin, count = struct.unpack_from("<Q", batch, 24)[0], struct.unpack_from("<I", batch, 48)[0]
        at, first = HEADER, partition.next
        with self.lock:
            for _ in range(count):
                number = int.from_bytes(batch[at + 8 : at + 24], "little")
                _, delta, headers, payload = struct.unpack_from("<IIII", batch, at + 24)
                low = at + 48
                at = low + payload + headers
                content = batch[low : low + payload], batch[low + payload : at]
                partition.append(Message(number, *content, origin + delta))
        self.sends += 1
        return struct.pack("<IIIIQ", 1, stream.id, topic.id, partition.id, first)

    def _poll(self, body: "Reader", fault: str) -> bytes:
        consumer, partition = self._consumer(body)
        kind, value, count = body.number("B"), body.number("Q"), body.number("I")
        if partition is None:
            raise Refused(NOT_FOUND_PARTITION)
        held, place = partition.messages, (partition.created, kind, value)
        if self.brief and fault.startswith(("skip", "hole")):
            fault = "" if place in self._left_out else fault
            self._left_out.add(place)
        if kind == 1:
            low = next((i for i, m in enumerate(held) if m.offset >= value), len(held)) if held else 0
            if held and value >= held[0].offset and value - held[0].offset < len(held):
                guess = value - held[0].offset
                low = guess if held[guess].offset == value else low
        elif kind == 2:
            low = next((i for i, m in enumerate(held) if m.time >= value), len(held))
        elif kind == 3:
            low = 0
        elif kind == 4:
            low = max(0, len(held) - count)
        else:
            stored = partition.offsets.get(consumer, -1)
            low = next((i for i, m in enumerate(held) if m.offset > stored), len(held))
        found = held[low : low + count]
        if self.narrow and kind == 1:
            found = [message for message in found if message.offset < value + count]
        if fault == "empty":
            found = []
        elif fault.startswith("skip"):
            found = held[low + int(fault.partition(":")[2]) :][:count]
        elif fault.startswith("hole"):
            found = found[:5] + found[5 + int(fault.partition(":")[2]) :]
        self.polls += 1
        self.polled += len(found)
        out = [struct.pack("<IQI", partition.id, max(0, partition.next - 1), len(found))]
        for run in _runs(found):
            out.append(_batch(partition.id, run))
        return b"".join(out)

    def _consumer(self, body: "Reader") -> tuple[bytes, Partition | None]:
        kind = body.number("B")
        consumer = bytes([kind]) + repr(body.ident()).encode()
        stream = self._find_stream(body.ident())
        if stream is None:
            raise Refused(NOT_FOUND_STREAM)
        topic = self._find_topic(stream, body.ident())
        if topic is None:
            raise Refused(NOT_FOUND_TOPIC)
        given, number = body.number("B"), body.number("I")
        return consumer, next((p for p in topic.partitions if p.id == (number if given else 0)), None)

    def _find_stream(self, ident: int | str) -> Stream | None:
        return next((s for s in self.streams.values() if ident in (s.id, s.name)), None)

    def _find_topic(self, stream: Stream, ident: int | str) -> Topic | None:
        return next((t for t in stream.topics.values() if ident in (t.id, t.name)), None)

    def _stream(self, stream: Stream) -> bytes:
        return (
            struct.pack("<IQIQQ", stream.id, stream.created, len(stream.topics), 0, 0)
            + bytes([len(stream.name.encode())]) + stream.name.encode() + struct.pack("<I", 0)
        )  # fmt: skip

    def _topic(self, topic: Topic) -> bytes:
        held, name = sum(len(p.messages) for p in topic.partitions), topic.name.encode()
        limits = topic.expiry, 1, topic.size, 0, held
        return (
            struct.pack("<IQIQBQQQ", topic.id, topic.created, len(topic.partitions), *limits)
            + bytes([len(name)]) + name + struct.pack("<II", 0, 0)
        )  # fmt: skip

    def _partition(self, partition: Partition) -> bytes:
        size = sum(len(m.payload) + 48 for m in partition.messages)
        return struct.pack(
            "<IQIQQQ", partition.id, partition.created, 1, max(0, partition.next - 1), size, len(partition.messages)
        )


def _runs(messages: list[Message]) -> list[list[Message]]:
    """Messages whose offsets follow each other, cut as a server cuts its batches."""
    out: list[list[Message]] = []
    for message in messages:
        last = out[-1][-1] if out else None
        if last is None or message.offset != last.offset + 1 or len(out[-1]) >= 700:
            out.append([])
        out[-1].append(message)
    return out


def _batch(partition: int, messages: list[Message]) -> bytes:
    base, when, origin = messages[0].offset, messages[0].time, min(m.origin for m in messages)
    blob = []
    for m in messages:
        head = struct.pack("<Q", 0) + m.id.to_bytes(16, "little")
        head += struct.pack(
            "<IIIIQ", m.offset - base, min(m.origin - origin, 2**32 - 1), len(m.headers), len(m.payload), 0
        )
        blob += [head, m.payload, m.headers]
    data = b"".join(blob)
    block = bytearray(HEADER)
    struct.pack_into("<QQQQQQI", block, 0, partition, base, when, origin, HEADER + len(data), 0, len(messages))
    return bytes(block) + data


def text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode()


class Reader:
    """Takes a request apart."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, kind: str) -> int:
        return int(struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind)))[0])

    def name(self) -> str:
        return self.take(self.number("B")).decode()

    def ident(self) -> int | str:
        kind, value = self.number("B"), self.take(self.number("B"))
        return int.from_bytes(value, "little") if kind == 1 else value.decode()

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)
