"""What a user may set to read and to write a journal."""

from pathlib import Path

from pydantic import field_validator

from penstock.options import Options, ReadOptions, WriteOptions, option


class FolderOptions(Options):
    """Where the logs are."""

    directory: Path = option(doc="Folder of the logs. Each of its sub-folders is one.", place=True)


class JournalOptions(FolderOptions, ReadOptions):
    """How they are read."""


class JournalSinkOptions(FolderOptions, WriteOptions):
    """Which log is written to."""

    shard: str = option("out", doc="The log to write to. It is made where it is not there.")

    @field_validator("shard")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not name or "/" in name or name.startswith("."):
            raise ValueError("must be the name of a folder inside of 'directory', without slashes or a dot in front")
        return name
