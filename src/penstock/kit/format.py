"""What a format is, apart from Spark: its name, its options, its promises, and how its sources and sinks are opened.
Knows no server and no Spark, but for the names of two options that Spark passes on.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, TypeVar, cast

import pyarrow as pa

from penstock.errors import OptionError
from penstock.kit.contract import Guarantee, Predicate, Sink, Source
from penstock.options import Options, ReadOptions, shown, spellings

# Options that are meant for Spark itself, and that it passes on.
SPARKS_OWN = ("checkpointLocation", "queryName")

Read = TypeVar("Read", bound=ReadOptions)
Write = TypeVar("Write", bound=Options)
Model = TypeVar("Model", bound=Options)


class Format(Generic[Read, Write]):
    """One format. With Spark, `penstock.spark.connector.Connector` makes a data source of it."""

    format: ClassVar[str]
    options_type: ClassVar[type[ReadOptions] | None] = None  # None: cannot be read
    sink_options_type: ClassVar[type[Options] | None] = None  # None: cannot be written
    replayable: ClassVar[Guarantee] = Guarantee.NO  # a range that is read again gives the same rows
    exactly_once: ClassVar[Guarantee] = Guarantee.NO  # a retried or replayed task leaves no duplicate

    @classmethod
    def columns(cls, options: Read) -> pa.Schema:
        """The columns of a row, given the options."""
        raise NotImplementedError

    @classmethod
    def open_source(cls, options: Read) -> Source:
        """A source. It connects when it is first used, in the process that uses it."""
        raise NotImplementedError

    @classmethod
    def open_sink(cls, options: Write, columns: pa.Schema) -> Sink:
        """A sink for rows of these columns. An error where it cannot write them. It connects when it is first used."""
        raise NotImplementedError

    @classmethod
    def only_streams(cls, options: Read) -> str | None:
        """Why a batch read is not possible, and what to do about it; None where it is."""
        return None

    @classmethod
    def only_batches(cls, options: Read) -> str | None:
        """Why a streaming read is not possible, and what to do about it; None where it is."""
        return None

    @classmethod
    def shaped(cls, options: Read, asked: pa.Schema) -> Read:
        """`options` for rows of the columns that the user asked for, if the format lets the user choose them."""
        return options

    @classmethod
    def pushes(cls, options: Read) -> bool:
        """Whether filters on the shared columns `stream`, `sequence` and `timestamp` can be pushed down."""
        return True

    @classmethod
    def narrow(cls, options: Read, predicates: Sequence[Predicate]) -> Read | None:
        """`options` that may read less, but every row that satisfies all `predicates`; None where no row can."""
        return options

    @classmethod
    def servers_own(cls, options: Write) -> Sequence[str]:
        """Columns that only the server fills. A table has them, and an INSERT must leave them null."""
        return ()

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return cls.format

    @classmethod
    def parse(cls, raw: Mapping[str, object]) -> Read:
        """The options to read with, or an OptionError."""
        return cast(Read, cls._parse(cls.options_type, raw))

    @classmethod
    def parse_sink(cls, raw: Mapping[str, object]) -> Write:
        """The options to write with, or an OptionError."""
        return cast(Write, cls._parse(cls.sink_options_type, raw))

    @classmethod
    def _parse(cls, model: type[Model] | None, raw: Mapping[str, object], ignore: Sequence[str] = ()) -> Model:
        if model is None:
            raise OptionError(f"{cls.format} can be {'written' if cls.sink_options_type else 'read'} only.")
        if "path" in raw:
            raise OptionError(f"{cls.format} takes no path in load() or save(): give it as an option.")
        return model.parse(cls.format, raw, ignore=(*SPARKS_OWN, *ignore), elsewhere=cls._other_way(model))

    @classmethod
    def _other_way(cls, model: type[Options]) -> dict[str, str]:
        """Errors for options of the sink where rows are read, and the other way round, by their names."""
        reads = model is cls.options_type
        other = cls.sink_options_type if reads else cls.options_type
        if other is None:
            return {}
        whose, here, there = "sink", "read", "write or writeStream"
        if not reads:
            whose, here, there = "source", "write", "spark.read or spark.readStream"
        known = spellings(model)

        def alike(spelt: str) -> str:
            """A hint at an option with one `s` more or less, such as subject and subjects; else empty."""
            name = known.get(f"{spelt}s") or known.get(spelt.removesuffix("s"))
            return f" To {here}, the option is '{shown(model, name)}'." if name else ""

        return {
            spelt: f"option '{shown(other, name)}' is for the {whose} of {cls.format}, and this is a {here}. "
            f"Leave it out here, and give it to {there}.{alike(spelt)}"
            for spelt, name in spellings(other).items()
        }
