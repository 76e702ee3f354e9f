"""Who subscribes to what, as the monitoring pages of servers tell. `parse_*` are pure; `look` asks the pages."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.clients.nats.subjects import intersect
from penstock.clients.pages import Missing, Site
from penstock.errors import ConnectError, ProtocolError
from penstock.kit.masking import harmless
from penstock.operate.migrate.filters import is_private

# Connections a page; and the most pages of one server, so that one that repeats itself does not hold us for ever.
PAGE, MOST_PAGES = 256, 400


class Subscription(NamedTuple):
    """One subscription. `group` is its queue group, or empty."""

    server: str
    connection: int
    name: str  # of the connection; empty where it has none
    subject: str
    group: str
    kind: str = "client"  # or leaf node


@dataclass(frozen=True)
class Server:
    """What a server says of itself."""

    name: str
    version: str
    max_payload: int
    storage: int | None  # bytes that JetStream may use on it; None where that is not told
    storage_used: int
    memory: int | None
    memory_used: int
    cluster_size: int  # servers with JetStream in its cluster; 1 without one


@dataclass(frozen=True)
class Seen:
    """What the pages of all servers told."""

    servers: tuple[Server, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    away: tuple[str, ...] = field(default=())  # pages that did not answer, and why

    @property
    def cluster_size(self) -> int:
        """How many servers with JetStream there are, as far as these tell."""
        return max((server.cluster_size for server in self.servers), default=0)


def parse_server(varz: Any, jsz: Any) -> Server:
    """From /varz and /jsz."""
    config, used = _dict(_dict(varz, "jetstream"), "config"), _dict(_dict(varz, "jetstream"), "stats")
    return Server(
        harmless(_text(varz, "server_name") or _text(varz, "server_id")),
        harmless(_text(varz, "version")),
        _number(varz, "max_payload"),
        _number(config, "max_storage") if "max_storage" in config else None,
        _number(used, "storage"),
        _number(config, "max_memory") if "max_memory" in config else None,
        _number(used, "memory"),
        _number(_dict(jsz, "meta_cluster"), "cluster_size") or 1,
    )


def parse_connections(server: str, connz: Any, filters: Sequence[str], account: str | None) -> Iterator[Subscription]:
    """The subscriptions of a page of /connz?subs=detail&auth=1 that match something of the filters. Those of another
    account are left out, where we know ours.
    """
    for client in _dicts(connz, "connections"):
        if account and _text(client, "account") not in ("", account):
            continue
        name = harmless(_text(client, "name"))
        for each in _dicts(client, "subscriptions_list_detail"):
            subject = _text(each, "subject")
            if _concerns(subject, filters):
                yield Subscription(server, _number(client, "cid"), name, subject, harmless(_text(each, "qgroup")))


def parse_leaf_nodes(server: str, leafz: Any, filters: Sequence[str], account: str | None) -> Iterator[Subscription]:
    """The subscriptions that come through leaf nodes: who is behind them is not told."""
    for leaf in _dicts(leafz, "leafs"):
        if account and _text(leaf, "account") not in ("", account):
            continue
        for subject in _list(leaf, "subscriptions_list"):
            if isinstance(subject, str) and _concerns(subject, filters):
                name = f"behind leaf node {harmless(_text(leaf, 'name'))}"
                yield Subscription(server, 0, name, subject, "", "leaf node")


def parse_unknown(subsz: Any, filters: Sequence[str], known: Iterable[int], account: str | None) -> list[str]:
    """Subjects of a page of /subsz?subs=1 that no connection of `known` subscribed to: those of streams, and of what
    else a server does itself.
    """
    clients = set(known)
    return [
        _text(each, "subject")
        for each in _dicts(subsz, "subscriptions_list")
        if _number(each, "cid") not in clients
        and (not account or _text(each, "account") in ("", account))
        and _concerns(_text(each, "subject"), filters)
    ]


def look(urls: Sequence[str], filters: Sequence[str], account: str | None, own: str, taken: Sequence[str]) -> Seen:
    """Ask all pages. Connections called `own` are ours, and `taken` are filters of streams, which subscribe as well.
    A page that does not answer is told in `away`.
    """
    servers: list[Server] = []
    found: dict[Subscription, None] = {}
    away: list[str] = []
    for url in urls:
        site = Site(url)
        try:
            server = parse_server(site.json("/varz"), _or_nothing(site, "/jsz"))
            clients: set[int] = set()
            for page in _pages(site, "/connz?subs=detail&auth=1", "connections"):
                clients |= {_number(client, "cid") for client in _dicts(page, "connections")}
                found |= dict.fromkeys(parse_connections(server.name, page, filters, account))
            found |= dict.fromkeys(parse_leaf_nodes(server.name, _or_nothing(site, "/leafz?subs=1"), filters, account))
            leaves = {each.subject for each in found if each.kind == "leaf node"}
            unknown = {
                subject
                for page in _pages(site, "/subsz?subs=1", "subscriptions_list")
                for subject in parse_unknown(page, filters, clients, account)
            }
            found |= {
                Subscription(server.name, 0, "neither a client nor a leaf node", subject, "", "server"): None
                for subject in unknown - leaves - set(taken)
            }
        except ConnectError as error:
            away.append(str(error))
            continue
        servers.append(server)
    return Seen(tuple(servers), tuple(each for each in found if each.name != own), tuple(away))


def _pages(site: Site, path: str, key: str) -> Iterator[Any]:
    """All pages of a list. One that says nothing new is the last."""
    offset = 0
    for _ in range(MOST_PAGES):
        page = site.json(f"{path}&limit={PAGE}&offset={offset}")
        yield page
        count = len(_list(page, key))
        offset += count
        if not count or offset >= _number(page, "total"):
            return


def _or_nothing(site: Site, path: str) -> Any:
    try:
        return site.json(path)
    except Missing:
        return {}


def _concerns(subject: str, filters: Sequence[str]) -> bool:
    return bool(subject) and not is_private(subject) and any(intersect(subject, text) for text in filters)


def _dict(value: Any, name: str) -> dict[str, Any]:
    found = _mapping(value).get(name)
    return found if isinstance(found, dict) else {}


def _list(value: Any, name: str) -> list[Any]:
    found = _mapping(value).get(name)
    return found if isinstance(found, list) else []


def _dicts(value: Any, name: str) -> list[dict[str, Any]]:
    return [each for each in _list(value, name) if isinstance(each, dict)]


def _text(value: Any, name: str) -> str:
    found = _mapping(value).get(name)
    return found if isinstance(found, str) else ""


def _number(value: Any, name: str) -> int:
    found = _mapping(value).get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"a monitoring page answers with {harmless(value)[:60]!r}, which is no object.")
    return value
