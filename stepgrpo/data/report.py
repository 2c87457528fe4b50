"""What became of the rows of a source: none is dropped or changed without a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


class Unfit(ValueError):
    """A row that cannot be used.

    Attributes:
        reason: why, the same words for all rows that fail so.
        detail: what is wrong with this one.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


@dataclass
class ReadReport:
    """Counts of what was read.

    Attributes:
        read: how many rows there were. kept: how many are used. dropped: how many are not, by reason.
        first: where the first row dropped or noted for each reason stands.
        not_drawn: how many could have been used, but fewer were asked for.
        trajectories: how many demonstrations the rows came from, for the sources that have them.
        noted: how many rows were used with something amiss, such as a repaired id, by what it was.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    not_drawn: int = 0
    trajectories: int | None = None
    noted: Counter[str] = field(default_factory=Counter)

    def drop(self, reason: str, where: str, rows: int = 1) -> None:
        """Counts rows that are not used."""
        self.dropped[reason] += rows
        self.first.setdefault(reason, where)

    def drop_unfit(self, error: Unfit, where: str, rows: int = 1) -> None:
        """Counts rows that are not used for what the error says."""
        self.drop(error.reason, f"{where}, {error.detail}" if error.detail else where, rows)

    def note(self, remark: str, where: str, rows: int = 1) -> None:
        """Counts rows that are used all the same."""
        self.noted[remark] += rows
        self.first.setdefault(remark, where)

    def add(self, other: ReadReport) -> None:
        """Adds what another report counted as read, dropped and noted."""
        self.read += other.read
        self.dropped.update(other.dropped)
        self.noted.update(other.noted)
        self.first = {**other.first, **self.first}

    def __str__(self) -> str:
        text = f"{self.kept} of {self.read} rows"
        if self.trajectories is not None:
            text += f" from {self.trajectories} trajectories"
        if self.not_drawn:
            text += f"; {self.not_drawn} not drawn"
        for reason, count in self.dropped.most_common():
            text += f"; {count} dropped: {reason} (first: {self.first[reason]})"
        for remark, count in self.noted.most_common():
            text += f"; {count} noted: {remark} (first: {self.first[remark]})"
        return text
