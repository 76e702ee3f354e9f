"""Text of .proto files as descriptor sets. Knows protoc, of the package grpcio-tools, as protobuf itself has no parser;
no records.
"""

import base64
import binascii
import importlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from penstock.errors import OptionError
from penstock.kit.process_cache import shared

MAIN = "schema.proto"
LONGEST = 60.0  # seconds that protoc may take


def compiled(text: str, references: Sequence[tuple[str, str]] = ()) -> bytes:
    """The descriptor set of a file, and of those that it imports; its own part comes last. Made once in a process. An
    OptionError where it is no such file.

    `references`: names and texts of files that it imports, those that others need first; google/protobuf/ is known.
    Some clients register a serialized FileDescriptorProto in base64 in place of the text, which is taken too.
    """
    known = shared("proto_files", dict[tuple[str, tuple[tuple[str, str], ...]], bytes])
    key = (text, tuple(references))
    if key not in known:
        known[key] = _serialized(text, references) or _by_protoc(text, references)
    return known[key]


def _by_protoc(text: str, references: Sequence[tuple[str, str]]) -> bytes:
    if importlib.util.find_spec("grpc_tools") is None:
        raise OptionError("a .proto file needs protoc to be read: pip install 'penstock[protobuf]' on every machine.")
    with tempfile.TemporaryDirectory(prefix="penstock-proto-") as name:
        folder = Path(name)
        for file, content in [*references, (MAIN, text)]:
            if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
                raise OptionError(f"a file of Protobuf cannot be called '{file}'.")
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(content)
        # A process of its own: what is wrong with a file, protoc says to stderr alone.
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--include_imports"]
        ran = subprocess.run(
            [*command, f"--descriptor_set_out={folder / 'set'}", MAIN],
            cwd=folder, capture_output=True, text=True, timeout=LONGEST, check=False,
        )  # fmt: skip
        if ran.returncode:
            raise OptionError(f"this is no .proto file that protoc takes: {ran.stderr.strip()[:500]}")
        return (folder / "set").read_bytes()


def _serialized(text: str, references: Sequence[tuple[str, str]]) -> bytes | None:
    """The set of files that are serialized, or None where the first one is text."""
    # The package ships no types.
    from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]

    own = _file(text)
    if own is None:
        return None
    files: dict[str, Any] = {}

    def add(file: Any) -> None:
        for name in file.dependency:
            if name not in files and name.startswith("google/protobuf/"):
                module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
                add(descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
        files[file.name] = file

    for name, content in references:
        other = _file(content)
        if other is None:
            inner = descriptor_pb2.FileDescriptorSet.FromString(_by_protoc(content, references)).file
            for each in inner[:-1]:
                files.setdefault(each.name, each)
            other = inner[-1]
        other.name = name
        add(other)
    add(own)
    result: bytes = descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString()
    return result


def _file(text: str) -> Any:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True)) if text else None
    except (binascii.Error, ValueError, DecodeError):
        return None
