"""Who gets to see the access token and the encryption key of S2."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_double import HttpDouble, answer
from s2_sources_and_sinks import QUICK

from penstock.connectors.s2 import S2Streams
from penstock.errors import ConnectError, OptionError, PenstockError

TOKEN, KEY = "s3cret-token", base64.b64encode(b"secret key").decode()
NO_BASIN = answer(b'{"code":"basin_not_found","message":"no such basin"}', "404 Not Found")
BASINS = answer(b'{"basins":[{"name":"some-basin"}],"has_more":false}')


@pytest.fixture
def basin() -> Iterator[HttpDouble]:
    with HttpDouble(lambda head, body: BASINS if "/v1/basins" in head else NO_BASIN) as running:
        yield running


@pytest.fixture
def account() -> Iterator[HttpDouble]:
    with HttpDouble(lambda head, body: BASINS) as running:
        yield running


def _asked(**options: Any) -> str:
    """What a user is told who reads with these options."""
    given = {"basin": "some-basim", "streams": "x", "accessToken": TOKEN, "encryptionKey": KEY, **QUICK, **options}
    opened = S2Streams.open_source(S2Streams.parse(given))
    try:
        with pytest.raises(PenstockError) as told:
            opened.check()
    finally:
        opened.close()
    assert TOKEN not in str(told.value)
    return str(told.value)


def test_a_private_basin_tells_nothing_to_an_account_that_nobody_named(basin: HttpDouble) -> None:
    told = _asked(basinEndpoint=basin.url)
    assert f"there is no basin 'some-basim' at {basin.url}. Check the options 'basin' and 'basinEndpoint'." in told
    for given in ({"basinEndpoint": basin.url}, {"basinEndpoint": "https://{basin}.s2.example"}):
        assert S2Streams.parse({"basin": "some-basin", "streams": "x", **given}).account() is None
    cloud = S2Streams.parse({"basin": "some-basin", "streams": "x"})
    assert (cloud.base(), cloud.account()) == ("https://some-basin.b.s2.dev", "https://a.s2.dev")


def test_an_account_that_the_user_named_gets_the_token_and_never_the_key(
    basin: HttpDouble, account: HttpDouble
) -> None:
    told = _asked(basinEndpoint=basin.url, accountEndpoint=account.url)
    assert "there is no basin 'some-basim'" in told
    assert "Did you mean 'some-basin'?" in told
    assert len(account.heads) == 1
    assert f"authorization: Bearer {TOKEN}" in account.heads[0]
    assert KEY not in account.heads[0]
    assert "encryption" not in account.heads[0]


def test_one_address_for_everything_lists_its_basins_without_the_key(basin: HttpDouble) -> None:
    assert "Did you mean 'some-basin'?" in _asked(endpoint=basin.url)
    lists = [head for head in basin.heads if "/v1/basins" in head]
    assert len(lists) == 1
    assert KEY not in lists[0]


def test_a_server_that_knows_no_basin_wherever_it_is_asked_is_asked_once() -> None:
    with HttpDouble(lambda head, body: NO_BASIN) as running:
        assert "there is no basin 'some-basim'" in _asked(endpoint=running.url)
        assert len(running.heads) == 2


def test_nobody_is_sent_elsewhere_with_the_secrets(account: HttpDouble) -> None:
    away = answer(b"", "307 Temporary Redirect", f"location: {account.url}/v1/streams")
    with HttpDouble(lambda head, body: away) as running:
        assert "307" in _asked(endpoint=running.url)
    assert account.heads == []


@pytest.mark.parametrize("bad", ["a\r\nx-more: 1", "a\nb", "a\0b", "tokén", "a b"])
@pytest.mark.parametrize("name", ["accessToken", "accessTokenFile", "encryptionKey", "encryptionKeyFile"])
def test_a_secret_that_would_be_more_than_a_header_is_refused(
    name: str, bad: str, tmp_path: Path, basin: HttpDouble
) -> None:
    given = {"basin": "some-basin", "streams": "x", "endpoint": basin.url}
    if name.endswith("File"):
        (tmp_path / "secret").write_text(bad)
        given[name] = str(tmp_path / "secret")
    else:
        given[name] = bad
    told = "encryption(Key|Secret)" if name.startswith("encryption") else "accessToken"
    with pytest.raises(OptionError, match=told) as refused:
        S2Streams.open_source(S2Streams.parse(given)).check()
    assert bad not in str(refused.value)
    assert basin.heads == []


def test_a_refused_token_is_said_without_it() -> None:
    no = answer(b'{"code":"permission_denied","message":"no"}', "403 Forbidden")
    with HttpDouble(lambda head, body: no) as running:
        given = {"basin": "some-basin", "streams": "x", "endpoint": running.url, "accessToken": TOKEN}
        with pytest.raises(
            ConnectError, match=r"S2 refuses the access token.* 'accessToken' or 'accessToke"
        ) as refused:
            S2Streams.open_source(S2Streams.parse(given)).check()
        assert TOKEN not in str(refused.value)
