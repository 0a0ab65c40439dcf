"""The scores of a translator of many languages, as tables."""

from __future__ import annotations

from leadline.cli.terminal import answer, table
from leadline.data.directions import arrow
from leadline.files import Facts


def print_by_direction(facts: Facts) -> None:
    """A table by direction, and how its numbers were computed."""
    columns = ["direction", "", "sentences", "BLEU", "chrF", "off-target", "of references"]
    rows = [
        [
            arrow(row["direction"]),
            "zero-shot" if row["kind"] == "zero_shot" else "",
            f"{row['sentences']:,}",
            *(f"{row[key]:.1f}" for key in ("bleu", "chrf")),
            *(f"{row[key]:.1%}" for key in ("off_target", "off_target_references")),
        ]
        for row in facts["by_direction"]
    ]
    table(f"{facts['split']} by direction", columns, rows)
    answer.print()
    if origins := facts["by_origin"]:
        columns = ["origin", "sentences", "BLEU", "chrF", "off-target"]
        told = [
            [origin, f"{row['sentences']:,}", f"{row['bleu']:.1f}", f"{row['chrf']:.1f}", f"{row['off_target']:.1%}"]
            for origin, row in origins.items()
        ]
        table("by origin, means over directions", columns, told)
        answer.print()
    for signature, names in facts["signatures"].items():
        answer.print(f"{signature}: {names}")
    answer.print(
        "off-target: the share of outputs that are empty or that a language identifier takes for another language; it "
        f"is right in {facts['identifier_accuracy']:.1%} of held-out lines; of references: how often it is wrong on "
        "the references\n"
    )
