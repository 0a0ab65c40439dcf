"""The result of an inspection, as a value and as a folder: inspection.json and records.jsonl. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from leadline import notebook
from leadline.diagnose import fitted, record
from leadline.diagnose.connection import Connection
from leadline.diagnose.faults import Finding
from leadline.diagnose.record import Record
from leadline.diagnose.verdict import Verdict, longest_warmup
from leadline.errors import UserError
from leadline.files import Facts, read_json, write_json

Part = TypeVar("Part", Connection, Finding, Verdict)


@dataclass(frozen=True)
class Inspection:
    """What `inspect` has found: print it, show it in a notebook, or save it for `leadline report`."""

    name: str
    connections: Sequence[Connection]
    findings: Sequence[Finding]
    records: Sequence[Record]
    verdict: Verdict
    facts: Facts  # weights, optimizer, versions, device

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def _repr_html_(self) -> str:
        v = self.verdict
        parts = [*map(notebook.paragraph, _judged(self)), notebook.points("Because", v.evidence)]
        parts += [notebook.points("Found in the model", _found(self)), notebook.points("To do", v.remedies)]
        return notebook.card(f"{self.name}: {v.answer}", parts, "good" if v.trains else "bad")

    def save(self, folder: str | Path) -> None:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        record.save(self.records, path / "records.jsonl")
        write_json(path / "inspection.json", {key: value for key, value in asdict(self).items() if key != "records"})


def load(folder: str | Path) -> Inspection:
    path = Path(folder)
    try:
        saved = read_json(path / "inspection.json")
        return Inspection(
            saved["name"],
            [_built(Connection, row) for row in saved["connections"]],
            [_built(Finding, row) for row in saved["findings"]],
            record.load(path / "records.jsonl"),
            _built(Verdict, saved["verdict"]),
            saved["facts"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} does not hold an inspection: {error}") from None


def _built(kind: type[Part], row: Facts) -> Part:
    known = {field.name for field in fields(kind)}
    frozen = _tuples if kind is Connection else lambda value: value
    return kind(**{key: frozen(value) for key, value in row.items() if key in known})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def lines(inspection: Inspection) -> list[str]:
    """What a person wants to know, verdict first."""
    v = inspection.verdict
    said = [f"{inspection.name}: {v.answer}", *(f"  {line}" for line in _judged(inspection))]
    said += [f"  because {line}" for line in v.evidence]
    if not v.trains:
        said.append(f"  in the first step the residual stream changes most from {v.where} on")
    said += [f"  {line}" for line in _found(inspection)]
    said += [f"  to do: {line}" for line in v.remedies]
    return said


def _judged(inspection: Inspection) -> list[str]:
    v = inspection.verdict
    judged = f" (judged as {longest_warmup()})" if v.warmup > longest_warmup() else ""
    said = f"at lr {v.rate:g}, warm-up {v.warmup}{judged}: {'trains' if v.trains else 'does not train'}"
    return [f"{said} (probability of learning {v.probability:.2f})", *([fitted.hint(v.outside)] if v.outside else [])]


def _found(inspection: Inspection) -> list[str]:
    said = []
    for f in inspection.findings:
        more = f" ({f.places} places)" if f.places > 1 else ""
        said.append(f"{'wrong' if f.severity == 'fault' else 'note'}: {f.where}{more}: {f.message}")
    return said
