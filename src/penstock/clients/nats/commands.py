"""Headers that tell a server what to do with a message, as opposed to those that describe it. Knows names only.

A copied row has the headers of the message that it was read from. What they told the server then must not be done
again: `Nats-Rollup: all` empties a stream, `Nats-Schedule` publishes for ever, `Nats-Trace-Only` stores nothing.
"""

# `Nats-Schedule` also begins what a scheduler adds to the messages that it publishes.
COMMANDS = r"^Nats-(Batch-|Expected-|Incr$|Msg-Id$|Required-Api-Level$|Rollup$|Schedule|Stream-Source$|Trace-|TTL$)"
# Those that the JetStream sink gives itself, or that a stream takes from nobody but a server.
NEVER_OURS = r"^Nats-(Batch-|Msg-Id$|Stream-Source$|Trace-)"
