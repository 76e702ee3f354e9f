"""A SparkSession with the settings that Penstock was measured with: the short name of `penstock.spark.session`."""

import sys

from penstock.errors import OptionError
from penstock.spark.session import hide_secrets, local_session, require_java

__all__ = ["hide_secrets", "local_session", "require_java"]

if __name__ == "__main__":
    try:
        print(f"Java {require_java()}")
    except OptionError as error:
        sys.exit(str(error))
