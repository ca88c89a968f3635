"""How results show themselves. Everything that is computed is the program's; here figures become text."""
import html
import os
from typing import Any, List, Optional, Tuple

from ._program import Error
from ._record import Record


def _size(count: Optional[int]) -> str:
    """Bytes as people read them."""
    if count is None:
        return "unknown"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def _table(head: Tuple[str, ...], rows: List[Tuple[str, ...]]) -> str:
    def cells(row: Tuple[str, ...], tag: str) -> str:
        aligned = ["left"] + ["right"] * (len(row) - 1)
        return "".join(f'<{tag} style="text-align:{side}">{html.escape(text)}</{tag}>' for side, text in zip(aligned, row))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


class _Answer(Record):
    """A whole answer of the program, which can be asked for again in other forms."""

    def _again(self, *words: str, instead: Optional[str] = None) -> str:
        if self.call is None:
            raise Error("this result was not made by a call of the program")
        return self.call.asking(*words, instead=instead).run(accept=(0, 3, 4, 5))

    @property
    def command(self) -> str:
        """The command line that gives this answer; empty where it was read from a file."""
        return self.call.command if self.call else ""

    def report(self) -> str:
        """The program's report, as text."""
        return self._again()

    def markdown(self) -> str:
        """The program's report, as Markdown."""
        return self._again("--format", "md")

    def __str__(self) -> str:
        return self.report() if self.call else repr(self)


class PredictionView(_Answer):
    """What a prediction can do besides holding figures."""

    def page(self) -> str:
        """One HTML page that needs nothing else: memory over the step, what is alive at the peak, traffic."""
        return self._again("--format", "html", instead="emit")

    def save_page(self, path: "os.PathLike[str] | str") -> None:
        """Writes the page to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.page())

    def __repr__(self: Any) -> str:
        peak = self.memory.peak
        process = _size(peak.process if peak else None)
        return (f"<Prediction of {self.model}, rank {self.rank} of {self.world_size}: {self.verdict}, "
                f"peak {process} of {_size(self.capacity_bytes)}>")

    def _repr_html_(self: Any) -> str:
        """The page, and its figures as a table for viewers that show no frames."""
        if self.call is None:
            return self._figures()
        # Between single quotes, a page's many double ones stay as they are.
        page = self.page().replace("&", "&amp;").replace("'", "&#39;")
        frame = f"<iframe srcdoc='{page}' title='dsplan' style='width:100%;height:720px;border:0'></iframe>"
        return f"{frame}<details><summary>as a table</summary>{self._figures()}</details>"

    def _figures(self: Any) -> str:
        peak, kept = self.memory.peak, self.memory.persistent
        head = f"<p><b>{html.escape(self.model)}</b>, rank {self.rank} of {self.world_size}: <b>{self.verdict}</b>"
        head += f" ({html.escape(self.verdict_reason)})</p>" if self.verdict_reason else "</p>"
        rows = []
        if peak:
            for role in peak.by_role.__dataclass_fields__:
                rows.append((role.replace("_", " "), _size(getattr(kept, role)), _size(getattr(peak.by_role, role))))
            rows.append(("requested", _size(kept.total), _size(peak.requested)))
            rows.append(("reserved", "", _size(peak.reserved)))
            rows.append(("process", "", _size(peak.process)))
        rows.append(("capacity", "", _size(self.capacity_bytes)))
        return head + _table(("bytes of", "between steps", "at the peak"), rows)


class SearchView(_Answer):
    """What the answer of a search can do besides holding figures."""

    def __repr__(self: Any) -> str:
        if self.chosen is None:
            return f"<Search for {self.model}: no plan fits>"
        settings = self.chosen.settings
        chosen = ", ".join(f"{key}={getattr(settings, key)}" for key in settings.__dataclass_fields__)
        return f"<Search for {self.model}: {self.chosen.fate}, {chosen}>"

    def _repr_html_(self: Any) -> str:
        plans = [("chosen", self.chosen)] if self.chosen else [("nearest", self.nearest)] if self.nearest else []
        plans += [("next", plan) for plan in self.next]
        if not plans:
            return f"<p>{html.escape(repr(self))}</p>"
        names = tuple(plans[0][1].settings.__dataclass_fields__)
        rows = []
        for what, plan in plans:
            speed = f"{plan.time.tokens_per_second:,.0f}" if plan.time else "unknown"
            rows.append((what, plan.fate, *(str(getattr(plan.settings, name)) for name in names), _size(plan.process_bytes), speed))
        heads = ("", "fate", *(name.replace("_", " ") for name in names), "process", "tokens/s")
        return f"<p><b>{html.escape(self.model)}</b></p>" + _table(heads, rows)


class ComparisonView(_Answer):
    """What a comparison can do besides holding rows."""

    def _differing(self: Any) -> List[Any]:
        return [(receipt, rank, row) for receipt in self.receipts for rank in receipt.ranks for row in rank.rows
                if row.state == "differs"]

    def __repr__(self: Any) -> str:
        refused = [receipt for receipt in self.receipts if receipt.refused is not None]
        return f"<Comparison of {len(self.receipts)} receipts: {len(self._differing())} rows differ, {len(refused)} refused>"

    def summary(self: Any, most: int = 8) -> str:
        """What differs, in at most so many lines; empty where nothing does."""
        rows = self._differing()
        lines = [f"  {row.row}: predicted {_count(row.predicted)}, measured {_count(row.measured)}" for _, _, row in rows]
        if len(lines) > most:
            lines[most - 1:] = [f"  and {len(lines) - most + 1} more rows"]
        refused = [f"  {receipt.receipt}: {receipt.refused}" for receipt in self.receipts if receipt.refused is not None]
        return "\n".join(refused + lines)

    def _repr_html_(self: Any) -> str:
        rows = [(row.row, str(rank.rank), _count(row.predicted), _count(row.measured), _count(row.unexplained))
                for _, rank, row in self._differing()]
        return f"<p>{html.escape(repr(self))}</p>" + _table(("differs", "rank", "predicted", "measured", "unexplained"), rows)


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


class SweepPointView(Record):
    """What a point can do besides holding figures."""

    @property
    def fits(self: Any) -> Optional[bool]:
        """None where nobody can say, or where there is no such configuration."""
        return {"does_not_fit": False, "unknown": None, "refused": None}.get(self.verdict, True)

    def __repr__(self: Any) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return f"<SweepPoint {values}: {self.verdict}, {_size(self.process_bytes)}>"


class SweepView(_Answer):
    """What a sweep can do besides holding points."""

    def __repr__(self: Any) -> str:
        axes = " x ".join(f"{len(axis.values)} {axis.name}" for axis in self.axes)
        return f"<Sweep of {axes}: {sum(point.fits is True for point in self.points)} of {len(self.points)} fit>"

    def fastest(self: Any) -> Any:
        """The point with the most tokens per second that fits with nothing in doubt; None where there is none."""
        timed = [point for point in self.points if point.verdict == "fits" and point.tokens_per_second is not None]
        return max(timed, key=lambda point: point.tokens_per_second, default=None)

    def _repr_html_(self: Any) -> str:
        names = tuple(axis.name for axis in self.axes)
        rows = []
        for point in self.points:
            speed = f"{point.tokens_per_second:,.0f}" if point.tokens_per_second is not None else ""
            rows.append((*(point.values[name] for name in names), point.verdict.replace("_", " "), _size(point.process_bytes),
                         _size(point.capacity_bytes), speed, point.reason))
        heads = (*names, "verdict", "process", "capacity", "tokens/s", "")
        return f"<p>{html.escape(repr(self))}</p>" + _table(heads, rows)
