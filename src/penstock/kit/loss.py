"""Records that were lost before they were read: stop the query, or log it and go on, as `failOnDataLoss` says. Knows
no server, no Spark.
"""

import logging
from collections.abc import Callable, Hashable, Sequence

from penstock.errors import DataLossError, OptionError
from penstock.kit import figures
from penstock.options import ReadOptions
from penstock.planning.positions import Loss

log = logging.getLogger("penstock")


class LossReport:
    """Raises the first loss, or logs each loss once."""

    def __init__(self, options: ReadOptions):
        self.stops = options.fail_on_data_loss
        self._logged: set[Hashable] = set()

    def lost(self, losses: Sequence[Loss], end: int | None = None) -> None:
        """Report losses. Lost records count as skipped where their number is known, up to the `end` of a range."""
        for loss in losses:
            skipped = loss.records if end is None else min(loss.records, max(0, end - loss.at))
            self.report(f"stream {loss}", loss.remedy, key=(loss.shard, loss.at, loss.kind), skipped=skipped)

    def report(self, loss: str, remedy: str, *, key: Hashable = None, skipped: int = 0) -> None:
        """Report one loss, with what the user can do about it. A `key` is logged only once."""
        if self.stops:
            raise DataLossError(f"{loss}. {remedy}")
        if self._is_new(key or loss):
            figures.count(skipped=skipped)
            log.warning("failOnDataLoss=false, going on: %s", loss)

    def missing(self, name: str, error: Callable[[], OptionError], *, nothing_left: bool) -> None:
        """Report a stream that the options name and that does not exist. Always an error where nothing else is left to
        read.
        """
        if self.stops or nothing_left:
            raise error()
        if self._is_new(("missing", name)):
            log.warning("failOnDataLoss=false, going on without '%s': %s", name, error())

    def _is_new(self, key: Hashable) -> bool:
        is_new = key not in self._logged
        self._logged.add(key)
        return is_new
