"""How long to try again without any progress. Knows no server."""

import logging
import time

from penstock.errors import ConnectError, Disconnected

log = logging.getLogger("penstock")


class Patience:
    """Allows `most` failures in a row, with a wait that doubles between them."""

    def __init__(self, what: str, most: int, delay: float):
        self.what, self.most, self.delay, self.failures = what, most, delay, 0

    def progress(self) -> None:
        """It works again."""
        self.failures = 0

    def after(self, error: Disconnected) -> None:
        """Wait before the next try, or give up."""
        self.failures += 1
        if self.failures > self.most:
            raise ConnectError(f"{self.what} failed {self.failures} times in a row: {error}") from None
        log.warning("%s; %s goes on", error, self.what)
        time.sleep(min(2.0, self.delay * 2 ** (self.failures - 1)))
