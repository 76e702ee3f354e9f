"""Headers that are commands to the server, not descriptions of the message. Knows names only.

A copied row has the headers of the message that it was read from. Those commands must not run again: `Nats-Rollup: all`
empties a stream, `Nats-Schedule` publishes for ever, `Nats-Trace-Only` stores nothing.
"""

# `Nats-Schedule` has no `$`: a scheduler adds headers that begin with it to the messages that it publishes.
COMMANDS = r"^Nats-(Batch-|Expected-|Incr$|Msg-Id$|Required-Api-Level$|Rollup$|Schedule|Stream-Source$|Trace-|TTL$)"
# Set by the JetStream sink itself, or accepted by a stream only from a server.
NEVER_OURS = r"^Nats-(Batch-|Msg-Id$|Stream-Source$|Trace-)"
