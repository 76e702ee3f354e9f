"""Runs the scenarios and writes their results: `make bench`. ONLY=... chooses parts, COUNT=... the messages."""

import decoding
import iggy
import jetstream
import jetstream_write
import observe
import pipelines
import plots
import s2
from measure import save

if __name__ == "__main__":
    save("jetstream-read", jetstream.main())
    save("jetstream-write", jetstream_write.main())
    save("s2", s2.main())
    save("iggy", iggy.main())
    save("pipelines", pipelines.main())
    save("codecs", decoding.main())
    save("observe", observe.main())
    plots.draw()
