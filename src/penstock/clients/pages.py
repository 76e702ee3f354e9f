"""What a web server answers, limited in size and time. Knows HTTP; knows nothing of what is in an answer."""

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from penstock.errors import ConnectError, OptionError
from penstock.kit.masking import harmless

# Seconds until an answer begins, and until it is complete.
TIMEOUT, WHOLE = 10.0, 30.0
# The longest answer. Spark keeps a thousand jobs, which is about a megabyte.
MOST = 32 << 20


class Missing(ConnectError):  # noqa: N818 - what happened, and the base says that it is an error
    """The server has nothing at this address."""


class Site:
    """A web server by its address, which may have a user and a password. `key` is sent as the header `api-key`.
    Messages show none of them.
    """

    def __init__(self, url: str, timeout: float = TIMEOUT, *, key: str = ""):
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme not in ("http", "https") or not host:
            raise OptionError(f"'{harmless(url)}' is no address of a web server: write http://HOST:PORT.")
        self.timeout, self._key = timeout, key
        self._login = parts.netloc.rpartition("@")[0]
        netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
        self.url = urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))
        # Nothing on this machine is behind a proxy, whatever the environment says of the others.
        is_here = host == "localhost" or host.startswith("127.") or host == "::1"
        proxies = [urllib.request.ProxyHandler({})] if is_here else []
        self._opener = urllib.request.build_opener(_NoRedirect, *proxies)

    def text(self, path: str) -> str:
        """The answer to a GET. A ConnectError where it fails, takes too long, or is too long."""
        return self._get(path).decode(errors="replace")

    def json(self, path: str) -> Any:
        """The answer to a GET. A ConnectError also where it is no JSON."""
        content = self._get(path)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            shown = harmless(content[:60].decode(errors="replace"))
            raise ConnectError(f"{self.url}{path} answers with something else than JSON: '{shown}'.") from None

    def _get(self, path: str) -> bytes:
        headers = {"Accept": "application/json, text/html"}
        if self._login:
            headers["Authorization"] = f"Basic {base64.b64encode(self._login.encode()).decode()}"
        if self._key:
            headers["api-key"] = self._key
        where = self.url + path
        try:
            with self._opener.open(urllib.request.Request(where, headers=headers), timeout=self.timeout) as answer:
                return _all(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    raise Missing(f"{where} does not exist there (404).") from None
                raise ConnectError(f"{where} answers {error.code} {harmless(error.reason)}.") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = harmless(getattr(error, "reason", error) or type(error).__name__)
            raise ConnectError(f"{where} does not answer: {reason}.") from None


def _all(answer: Any) -> bytes:
    """All of an answer. An OSError where it is too long, or takes too long, also if it comes byte by byte."""
    parts, size, deadline = [], 0, time.monotonic() + WHOLE
    while part := answer.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > MOST:
            raise OSError(f"its answer is longer than {MOST >> 20} MB")
        if time.monotonic() > deadline:
            raise TimeoutError(f"its answer takes longer than {WHOLE:g} s")
    return b"".join(parts)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given: Any, **named: Any) -> None:
        """No request: it would take the password along, and the answer is an error then."""
