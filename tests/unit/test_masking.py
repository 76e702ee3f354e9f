"""What looks like a secret is not shown, and what does not is."""

import pytest

from penstock.kit.masking import is_secret, masked

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="two words";'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("boom password=hunter2, and more", "boom password=***, and more"),
        ("jdbc:postgresql://h/db?user=u&password=hunter2&ssl=1", "jdbc:postgresql://h/db?user=u&password=***&ssl=1"),
        (JAAS, JAAS.replace('"two words"', "***")),
        ('{"fs.azure.account.key": "abc", "n": 1}', '{"fs.azure.account.key": ***, "n": 1}'),
        ("pwd=abc", "pwd=***"),
        ("nats://ann:hunter2@host:4222 is away", "nats://host:4222 is away"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("the server refuses the token: 'token has expired'", "the server refuses the token: 'token has expired'"),
        ("set passwordFile, or token", "set passwordFile, or token"),
    ],
)
def test_secrets_in_words_of_others_are_hidden(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_options_that_are_secrets_are_known_by_their_names() -> None:
    for name in ("password", "kafka.sasl.jaas.config", "kafka.ssl.key.password", "sfPassword", "aws_secret_access_key"):
        assert is_secret(name), name
    for name in ("keyColumn", "topic", "path", "url", "kafka.ssl.truststore.location", "maxRecordsPerTrigger"):
        assert not is_secret(name), name
