"""The same load by `nats bench`, on the same server and in the same run, in turns with ours: whether our load generator
is the limit. Knows the command line of the `nats` program, and what it prints.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from penstock.clients.nats.options import NatsOptions
from penstock.errors import ConnectError, OptionError, PenstockError
from penstock.kit.masking import harmless
from penstock.operate.bench import figures
from penstock.operate.bench.consuming import config
from penstock.operate.bench.matrix import Scenario, most_messages
from penstock.operate.bench.processes import Processes
from penstock.operate.bench.publishing import WINDOW
from penstock.operate.bench.run import Round, Server, Settings, calling

PROGRAM = "nats"
LONGEST = 120.0
# Both publish on one subject: theirs can do no other that a stream of ours takes.
_RATE = re.compile(r"stats: ([\d,]+) msgs/sec")


def program() -> str:
    """Where the `nats` program is; an OptionError where it is not."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise OptionError(
            "--beside nats-bench needs the program `nats` on the PATH, and it is not there. It is NATS' own command "
            "line: https://github.com/nats-io/natscli."
        )
    return found


def environment(options: NatsOptions) -> dict[str, str]:
    """Where the program connects to, and as whom. Secrets are in the environment: others can read command lines."""
    secrets = {
        "token": options.token, "tokenFile": options.token_file, "nkeySeed": options.nkey_seed,
        "passwordFile": options.password_file, "userFile": options.user_file, "credentials": options.credentials,
    }  # fmt: skip
    if given := [name for name, value in secrets.items() if value is not None]:
        raise OptionError(f"--beside nats-bench cannot connect with '{given[0]}': use 'user' and 'password'.")
    wanted = {
        "NATS_URL": ",".join(options.servers),
        "NATS_USER": options.user,
        "NATS_PASSWORD": options.password.get_secret_value() if options.password else None,
        "NATS_CREDS": str(options.credentials_file) if options.credentials_file else None,
        "NATS_CA": str(options.tls_ca) if options.tls_ca else None,
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NATS_")}
    return kept | {name: value for name, value in wanted.items() if value}


def rate(said: str) -> float:
    """The messages a second that `nats bench` prints; a ConnectError where it prints none."""
    found = _RATE.search(said)
    if found is None:
        raise ConnectError(f"`nats bench` told no rate: '{harmless(said[-300:])}'.")
    return max(1.0, float(found[1].replace(",", "")))


def commands(stream: str, subject: str, scenario: Scenario, messages: int) -> dict[str, list[str]]:
    """What the program is asked, by what is compared."""
    common = ["--no-context", "bench", "js"]
    size = ["--stream", stream, "--size", str(scenario.size), "--msgs", str(messages), "--no-progress"]
    publish = ["pub", "async", subject, *size, "--clients", str(scenario.publishers), "--batch", str(WINDOW)]
    consume = ["consume", *size, "--clients", "1", "--acks", scenario.ack, "--consumer", "theirs", "--batch", "5000"]
    return {"publish": [*common, *publish], "consume": [*common, *consume]}


def beside(
    scenarios: list[Scenario], settings: Settings, run_id: str, server: Server, say: Callable[[str, str], None]
) -> dict[str, Any]:
    """Ours and theirs in turns, on streams that are alike."""
    where, found, failed = program(), [], []
    env = environment(server.options)
    version = _ran([where, "--version"], env).strip()
    with Processes() as processes:
        for scenario in scenarios:
            try:
                found += _in_turns(where, env, scenario, settings, run_id, server, processes, say)
            except PenstockError as error:
                failed.append(f"{scenario.name}: {harmless(error)}")
    said = f"nats {harmless(version)}; the same server, streams that are alike, and the same window, in turns."
    return {"said": said, "version": harmless(version), "figures": found, "failed": failed}


def _in_turns(
    where: str,
    env: dict[str, str],
    scenario: Scenario,
    settings: Settings,
    run_id: str,
    server: Server,
    processes: Processes,
    say: Callable[[str, str], None],
) -> list[dict[str, Any]]:
    """One scenario, ours and theirs in turns; who begins alternates."""
    ours: dict[str, list[float]] = {"publish": [], "consume": []}
    theirs: dict[str, list[float]] = {"publish": [], "consume": []}
    cores: dict[str, list[float]] = {"publish": [], "consume": []}
    for k in range(settings.rounds):
        say(scenario.name, f"round {k + 1} of {settings.rounds}")
        for is_ours in ((True, False), (False, True))[k % 2]:
            if not is_ours:
                for what, value in _theirs(where, env, scenario, settings, run_id, server, processes).items():
                    theirs[what].append(value)
                continue
            measured = Round(scenario, settings, run_id, server, processes, lambda phase, rate: None, 600)
            with measured.streams():
                measured.consume(measured.publish())
            for what in ours:
                ours[what].append(measured.figures[f"{what}_rate"])
                cores[what].append(measured.figures.get(f"{what}_server_cores", 0.0))
    return [
        {
            "what": f"{what}, {scenario.name}",
            "ours": figures.spread(ours[what])._asdict(),
            "theirs": figures.spread(theirs[what])._asdict(),
            "ratio": figures.spread([a / b for a, b in zip(ours[what], theirs[what], strict=True)])._asdict(),
            "server_cores": figures.spread(cores[what]).median,
        }
        for what in ours
    ]


def _theirs(
    where: str,
    env: dict[str, str],
    scenario: Scenario,
    settings: Settings,
    run_id: str,
    server: Server,
    processes: Processes,
) -> dict[str, float]:
    measured = Round(scenario, settings, run_id, server, processes, lambda phase, rate: None, 600)
    at, told = measured.place, {}
    with measured.streams(), calling(server.options) as calls:
        # As many as take about the seconds of a phase: first a few, to learn how many these are.
        few = min(20_000, most_messages(scenario, settings.most_bytes))
        asked = commands(at.streams[0], at.subject(0, 0), scenario, few)
        first = rate(_ran([where, *asked["publish"]], env))
        calls.call(f"STREAM.PURGE.{at.streams[0]}")
        many = int(min(most_messages(scenario, settings.most_bytes), max(few, first * settings.seconds)))
        many -= many % scenario.publishers
        asked = commands(at.streams[0], at.subject(0, 0), scenario, many)
        told["publish"] = rate(_ran([where, *asked["publish"]], env))
        durable = config("theirs", "pull", scenario.ack, "")
        calls.call(f"CONSUMER.CREATE.{at.streams[0]}.theirs", {"stream_name": at.streams[0], "config": durable})
        told["consume"] = rate(_ran([where, *asked["consume"]], env))
    return told


def _ran(command: list[str], env: dict[str, str]) -> str:
    try:
        ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONGEST, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConnectError(f"`nats bench` did not end well: {harmless(error)}") from None
    if ran.returncode:
        raise ConnectError(f"`nats bench` failed with {ran.returncode}: {harmless(ran.stderr[-300:])}")
    return ran.stdout
