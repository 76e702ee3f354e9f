"""What Spark says of an error, as one sentence: ours or Spark's, out of the text around it. Pure text."""

import re

from penstock.spark.sentence import found

# One of Java, thrown by a write inside of a batch.
_JAVA = re.compile(r"An error occurred while calling \S+\n: (?:[\w$]+\.)*([\w$]+: .+)")
_RAISED = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception|Interrupt|Exit|Warning): (.+)", re.MULTILINE)


def said(text: str) -> str:
    """The error of ours where there is one in the text, else what a user's function raised, else the first line."""
    if ours := found(text):
        return ours.text
    if raised := re.search(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE.*)?$", text, re.MULTILINE):
        return raised[1].strip()
    if error := _JAVA.search(text):
        return error[1].strip()
    if error := _RAISED.search(text.rpartition('\n  File "')[2]):  # what a traceback of Python ends with
        return re.sub(r" SQLSTATE: \w+$", "", error[1].strip())
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[0].strip() if lines else ""
