"""Data that is lost before it was read: the query stops, or goes on and says so, as `failOnDataLoss` asks."""

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

    def lost(self, losses: Sequence[Loss]) -> None:
        """What one look has found. Records whose number is known count as skipped."""
        for loss in losses:
            self.report(f"stream {loss}", loss.remedy, key=(loss.shard, loss.at, loss.kind), skipped=loss.records)

    def report(self, loss: str, remedy: str, *, key: Hashable = None, skipped: int = 0) -> None:
        """A loss in words, and what the user can do about it. The same `key` is the same loss."""
        if self.stops:
            raise DataLossError(f"{loss}. {remedy}")
        if self._is_new(key or loss):
            figures.count(skipped=skipped)
            log.warning("failOnDataLoss=false, going on: %s", loss)

    def missing(self, name: str, error: Callable[[], OptionError], *, nothing_left: bool) -> None:
        """A stream that the options name does not exist. Where nothing else is left to read, that is an error too."""
        if self.stops or nothing_left:
            raise error()
        if self._is_new(("missing", name)):
            log.warning("failOnDataLoss=false, going on without '%s': %s", name, error())

    def _is_new(self, key: Hashable) -> bool:
        is_new = key not in self._logged
        self._logged.add(key)
        return is_new
