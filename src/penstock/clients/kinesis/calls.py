"""The calls of Kinesis that we need, one function each. The only user of boto3. Knows no positions and no Spark."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.clients.kinesis.options import KinesisOptions
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError, ProtocolError
from penstock.kit.process_cache import shared

# Requests at a time of one process.
MOST_AT_ONCE = 16
# What each answer must have.
_HAS = {
    "describe_stream_summary": "StreamDescriptionSummary", "list_shards": "Shards", "get_records": "Records",
    "get_shard_iterator": "ShardIterator", "put_records": "Records", "list_streams": "StreamNames",
}  # fmt: skip
_BUSY = {
    "ProvisionedThroughputExceededException", "LimitExceededException", "ThrottlingException", "Throttling",
    "KMSThrottlingException", "RequestLimitExceeded",
}  # fmt: skip
_PASSING = {
    "InternalFailure",
    "InternalFailureException",
    "ServiceUnavailable",
    "ResourceInUseException",
    "RequestTimeout",
}


class ThrottledError(Disconnected):
    """Kinesis is asked more often than the limits of a shard allow."""


class ExpiredError(PenstockError):
    """An iterator is older than five minutes. A new one does."""


class GoneError(PenstockError):
    """There is no such stream or shard."""


class RefusedError(PenstockError):
    """The request makes no sense to Kinesis."""


class Summary(NamedTuple):
    """A stream: when it was created, and how long it keeps records, in hours."""

    created: str
    retention: int


class Shard(NamedTuple):
    """A shard, and those that it follows after a split or merge."""

    id: str
    parents: tuple[str, ...]
    is_closed: bool


class Page(NamedTuple):
    """Records of a shard, by columns. `next`: the iterator to go on with; None where the shard has ended. `behind`: how
    many milliseconds of records lie behind them, 0 where none do.
    """

    numbers: list[int]
    values: list[bytes]
    keys: list[str]
    times: list[int]  # milliseconds
    next: str | None
    behind: int


class Calls:
    """The calls about one stream. boto3's client is made at the first one, and kept by the process."""

    def __init__(self, options: KinesisOptions):
        self.options = options
        self._asked: dict[str, float] = {}  # when records of a shard were asked for

    def pause(self, shard: str, seconds: float) -> None:
        """Wait until records of a shard may be asked for again."""
        left = self._asked.get(shard, float("-inf")) + seconds - time.monotonic()
        if left > 0:
            time.sleep(left)
        self._asked[shard] = time.monotonic()

    def summary(self) -> Summary:
        """The stream. An OptionError where there is none."""
        try:
            answer = self.ask("describe_stream_summary", **self.options.of_stream)["StreamDescriptionSummary"]
        except GoneError as error:
            raise OptionError(
                f"stream '{self.options.stream}' does not exist at {self._where()}: {error}. Check the options "
                "'stream' and 'region'."
            ) from None
        return Summary(repr(answer["StreamCreationTimestamp"]), int(answer["RetentionPeriodHours"]))

    def shards(self) -> dict[str, Shard]:
        """All shards that still have records, or may get some."""
        shards: dict[str, Shard] = {}
        given: dict[str, Any] = dict(self.options.of_stream)
        while True:
            answer = self.ask("list_shards", **given)
            for each in answer["Shards"]:
                parents = (each.get("ParentShardId"), each.get("AdjacentParentShardId"))
                is_closed = "EndingSequenceNumber" in each["SequenceNumberRange"]
                shards[each["ShardId"]] = Shard(each["ShardId"], tuple(filter(None, parents)), is_closed)
            token = answer.get("NextToken")
            if not token:
                return shards
            given = {"NextToken": token}

    def is_closed(self, shard: str) -> bool:
        """Whether a shard gets no more records."""
        listed = self.shards().get(shard)
        return listed is None or listed.is_closed

    def iterator(self, shard: str, type: str, *, number: int | None = None, millis: int | None = None) -> str:
        """An iterator: TRIM_HORIZON; AT_SEQUENCE_NUMBER or AFTER_SEQUENCE_NUMBER with a `number`; AT_TIMESTAMP with
        `millis`.
        """
        more: dict[str, Any] = {}
        if number is not None:
            more["StartingSequenceNumber"] = str(number)
        if millis is not None:
            more["Timestamp"] = millis / 1000
        answer = self.ask("get_shard_iterator", **self.options.of_stream, ShardId=shard, ShardIteratorType=type, **more)
        return str(answer["ShardIterator"])

    def page(self, iterator: str, limit: int) -> Page:
        """The next records, at most `limit`. There may be none though some follow."""
        more = {"StreamARN": self.options.stream} if self.options.stream.startswith("arn:") else {}
        answer = self.ask("get_records", ShardIterator=iterator, Limit=limit, **more)
        records = answer["Records"]
        try:
            numbers = [int(record["SequenceNumber"]) for record in records]
            return Page(
                numbers,
                [record["Data"] for record in records],
                [record["PartitionKey"] for record in records],
                [round(record["ApproximateArrivalTimestamp"] * 1000) for record in records],
                answer.get("NextShardIterator"),
                int(answer.get("MillisBehindLatest") or 0),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Disconnected(f"Kinesis answered with records that cannot be read: {error!r}") from None

    def put(self, records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Store records. One answer for each: `SequenceNumber` and `ShardId`, or `ErrorCode` and `ErrorMessage`."""
        answer = self.ask("put_records", Records=records, **self.options.of_stream)
        results: list[Mapping[str, Any]] = answer["Records"]
        if len(results) != len(records):
            raise ProtocolError(f"Kinesis answered for {len(results)} records, and {len(records)} were sent.")
        return results

    def _where(self) -> str:
        region = self.client.meta.region_name
        return f"{self.options.endpoint} (region {region})" if self.options.endpoint else f"region {region}"

    @property
    def client(self) -> Any:
        """boto3's client, of this process: threads and tasks share it."""
        clients: dict[Any, tuple[Any, Any]] = shared("kinesis_clients", dict)
        secrets = tuple(self.options.reveal(name) for name in ("secret_access_key", "session_token"))
        key = (os.getpid(), self.options.model_dump_json(include=_IDENTITY))
        if key not in clients or clients[key][0] != secrets:
            clients[key] = secrets, _client(self.options)
        return clients[key][1]

    def ask(self, operation: str, **given: Any) -> dict[str, Any]:
        """One request: its answer, with the field that such an answer must have."""
        botocore = _botocore()
        try:
            answer: dict[str, Any] = getattr(self.client, operation)(**given)
        except botocore.ClientError as error:
            raise self._refused(error) from None
        except (
            botocore.NoCredentialsError,
            botocore.PartialCredentialsError,
            botocore.CredentialRetrievalError,
        ) as error:
            raise OptionError(
                f"there are no credentials for Kinesis: {error}. Set 'profile', 'roleArn', or 'accessKeyId' and "
                "'secretAccessKey', or the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            ) from None
        except botocore.SSLError as error:
            if "CERTIFICATE_VERIFY_FAILED" not in str(error):
                raise Disconnected(f"Kinesis at {self._where()} breaks off: {error}") from None
            raise ConnectError(f"the certificate of {self._where()} is not trusted: {error}.") from None
        except (botocore.HTTPClientError, botocore.ConnectionError) as error:
            raise Disconnected(f"Kinesis at {self._where()} does not answer: {error}") from None
        except botocore.ParamValidationError as error:
            raise OptionError(f"Kinesis cannot be used with these options: {error}.") from None
        except botocore.BotoCoreError as error:
            raise ConnectError(f"Kinesis cannot be asked: {error}.") from None
        except (ValueError, TypeError, AttributeError, KeyError) as error:  # botocore's, of an answer that is none
            raise Disconnected(f"Kinesis at {self._where()} gives an answer that cannot be read: {error!r}") from None
        # botocore makes an empty answer of one that was cut off.
        if not isinstance(answer, dict) or not isinstance(answer.get(_HAS[operation]), str | list | dict):
            raise Disconnected(f"Kinesis at {self._where()} gives an answer without {_HAS[operation]}")
        return answer

    def _refused(self, error: Any) -> PenstockError:
        code, text = str(error.response["Error"].get("Code")), str(error.response["Error"].get("Message"))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code in _BUSY:
            return ThrottledError(f"Kinesis allows no more requests for now ({code}): {text}")
        if code in _PASSING or status >= 500 or status in (408, 429):
            return Disconnected(f"Kinesis at {self._where()} answers {code}: {text}")
        if code == "ExpiredIteratorException":
            return ExpiredError(text)
        if code == "ResourceNotFoundException":
            return GoneError(text.rstrip("."))
        if code in ("InvalidArgumentException", "ValidationException", "SerializationException"):
            return RefusedError(text)
        return ConnectError(
            f"Kinesis at {self._where()} refuses: {text} ({code}). Check the credentials and what their policy allows: "
            "kinesis:DescribeStreamSummary, ListShards, GetShardIterator, GetRecords to read, PutRecords to write, "
            "ListStreams to list."
        )


# Fields that tell one client from another.
_IDENTITY = {
    "stream", "region", "endpoint", "credentials_provider", "profile", "role_arn", "external_id",
    "access_key_id", "tls_ca", "connect_timeout", "request_timeout",
}  # fmt: skip


def _botocore() -> Any:
    try:
        from botocore import exceptions
    except ImportError:
        raise OptionError(
            "the kinesis connector needs boto3. Install it with: pip install 'penstock[kinesis]'"
        ) from None
    return exceptions


def _client(options: KinesisOptions) -> Any:
    errors = _botocore()
    import botocore.session
    from botocore.config import Config

    session = botocore.session.Session(profile=options.profile)
    # Times as numbers: to make a datetime of each costs three times as much as all the rest of a record.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=lambda value: value)
    if options.stream_region is not None:
        session.set_config_variable("region", options.stream_region)
    config = Config(
        connect_timeout=options.connect_timeout,
        read_timeout=options.request_timeout,
        retries={"total_max_attempts": 1},  # whoever asks tries again, for as long as the options say
        max_pool_connections=MOST_AT_ONCE,
    )
    try:
        _sign_in(session, options)
        return session.create_client(
            "kinesis",
            endpoint_url=options.endpoint,
            verify=str(options.tls_ca) if options.tls_ca else None,
            config=config,
        )
    except errors.NoRegionError:
        raise OptionError(
            "Kinesis needs a region: set the option 'region', or the variable AWS_REGION or AWS_DEFAULT_REGION."
        ) from None
    except (errors.BotoCoreError, ValueError) as error:
        raise OptionError(f"Kinesis cannot be used with these options: {error}.") from None


def _sign_in(session: Any, options: KinesisOptions) -> None:
    """Give a session the credentials that the options name. Without any, it looks for some by itself."""
    if options.access_key_id is not None:
        session.set_credentials(
            options.access_key_id, options.reveal("secret_access_key"), options.reveal("session_token")
        )
    elif options.credentials_provider == "env":
        from botocore.credentials import EnvProvider

        session._credentials = EnvProvider().load()
        if session._credentials is None:
            raise OptionError(
                "credentialsProvider=env, but AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set: set both, on "
                "the driver and on every machine of the cluster."
            )
    if options.role_arn is not None:
        _assume(session, options)


def _assume(session: Any, options: KinesisOptions) -> None:
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

    more = {"RoleSessionName": f"penstock-{os.getpid()}"}
    if options.external_id is not None:
        more["ExternalId"] = options.external_id
    own = session.get_credentials()
    if own is None:
        raise OptionError(
            f"there are no credentials with which to assume the role '{options.role_arn}'. Set 'profile', or "
            "'accessKeyId' and 'secretAccessKey', or the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    fetcher = AssumeRoleCredentialFetcher(session.create_client, own, options.role_arn, extra_args=more)
    session._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
