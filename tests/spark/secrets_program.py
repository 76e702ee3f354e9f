"""Uses secrets in every way, in a session that nobody prepared, and keeps whatever Spark shows of it. Takes JSON."""

import contextlib
import io
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

job = json.loads(sys.argv[1])
folder = Path(job["folder"])
(folder / "shown").mkdir()
(folder / "events").mkdir()
(folder / "log4j2.properties").write_text(f"""rootLogger.level = debug
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/shown/jvm.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
logger.ui.name = org.sparkproject.jetty
logger.ui.level = info
""")
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
builder = SparkSession.builder.master("local[2]").config("spark.ui.port", job["port"])
for key, value in {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": f"file://{folder}/events",
    "spark.eventLog.compress": "false",
    "spark.sql.warehouse.dir": str(folder / "warehouse"),
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{folder}/log4j2.properties",
    "spark.ui.showConsoleProgress": "false",
}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()


def keep(place: str, text: str) -> None:
    with (folder / "shown" / f"{place}.txt").open("a") as file:
        file.write(text + "\n")


def look(place: str, way: Callable[[], Any]) -> None:
    """Keep what a call prints, gives and raises."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            keep(place, str(way()))
        except Exception as error:
            keep(place, f"{error}\n{error!r}")
    keep(place, out.getvalue())


def run(name: str, rows: Any, format: str, options: dict[str, str]) -> str:
    """A streaming query, until it has done something or failed."""
    writer = rows.writeStream.format(format).options(**options).queryName(name)
    query = writer.option("checkpointLocation", str(folder / "checkpoints" / name)).start()
    deadline = time.monotonic() + 8
    while query.isActive and time.monotonic() < deadline and not query.recentProgress:
        time.sleep(0.05)
    query.explain(True)
    query.stop()
    return "".join(p.json for p in query.recentProgress) + f"{query.status} {query.name} {query.exception()}"


def everything(frame: Any) -> str:
    return f"{frame} {frame!r} {frame.schema.json()} {frame._jdf.queryExecution()}"


def run_all(name: str, format: str, stream: Any, batch: Any, given: dict[str, str]) -> None:
    """Read from both frames, and write with the options given, and with wrong ones."""
    for wrong in ({"x": "1"}, {"connectTimeout": "5"}):
        look("load", spark.read.format(format).options(**given, **wrong).load)
    look("query", batch.collect)
    look("query", lambda: run(f"{name}-read", stream, "noop", {}))
    rows = spark.range(2).selectExpr("string(id) AS value")
    clock = spark.readStream.format("rate").load().selectExpr("string(value) AS value")
    look("query", rows.write.format(format).options(**given).mode("append").save)
    look("query", lambda: run(f"{name}-write", clock, format, given))
    # A column that is refused fails where Spark plans.
    look("query", rows.selectExpr("*", "1 AS x").write.format(format).options(**given).mode("append").save)
    look("query", lambda: run(f"{name}-refused", clock.selectExpr("*", "1 AS x"), format, given))


def use(name: str, format: str, source: dict[str, str], sink: dict[str, str], **more: dict[str, str]) -> None:
    """One format with its secrets, as a stream and at once, read and written, as it should be and wrong."""
    secret, given = more["secret"], source | more["secret"]
    look("load", spark.readStream.format(format).options(**given).load)
    # With its columns given, a frame is there also where a server refuses the secret.
    stream = spark.readStream.format(format).options(**given).schema("value BINARY").load()
    batch = spark.read.format(format).options(**given).schema("value BINARY").load()
    for frame in (stream, batch):
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            look("explain", partial(frame.explain, mode=mode))
        look("error", partial(frame.select, "nope"))
        look("error", partial(everything, frame))
    look("error", stream.count)
    if not name.endswith("marked"):  # what hides these is the same, and takes no more time
        run_all(name, format, stream, batch, sink | secret)
    look("table", lambda: spark.catalog.createTable(f"secret_{name}", source=format, **(source | sink | secret)))
    # No statement has a secret in it: Spark's log has every statement at DEBUG.
    options = ", ".join(f"`{key}` '{value}'" for key, value in (source | sink | more["files"]).items())
    look("table", lambda: spark.sql(f"CREATE TABLE {name} USING {format} OPTIONS ({options})"))
    look("table", lambda: spark.read.options(**secret).table(name).explain(True))
    look("table", lambda: spark.readStream.options(**secret, x=job["control"]).table(name).explain(True))
    look("table", lambda: spark.read.options(**secret).table(name).collect())
    look("table", spark.range(2).selectExpr("binary(string(id)) AS value").writeTo(name).options(**secret).append)
    for statement in (f"SHOW CREATE TABLE {name}", f"DESCRIBE EXTENDED {name}", f"SHOW TBLPROPERTIES {name}"):
        look("table", partial(lambda text: spark.sql(text).collect(), statement))


for case in job["cases"]:
    use(**case)


def page(path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{job['port']}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


api = f"/api/v1/applications/{json.loads(page('/api/v1/applications'))[0]['id']}"
executions = json.loads(page(f"{api}/sql?details=true&planDescription=true&length=10000"))
keep("pages", json.dumps(executions))
for path in ("/jobs/", "/stages/", "/environment/", "/SQL/", "/StreamingQuery/", f"{api}/environment", f"{api}/stages"):
    keep("pages", page(path))
for execution in executions:
    keep("pages", page(f"/SQL/execution/?id={execution['id']}"))
spark.stop()
