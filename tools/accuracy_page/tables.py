"""Markdown tables."""


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def table(columns, rows):
    """`columns`: names; one that begins with ">" stands to the right."""
    names = [name.removeprefix(">") for name in columns]
    ends = ["--:" if name.startswith(">") else ":--" for name in columns]
    lines = ["| " + " | ".join(names) + " |", "|" + "|".join(ends) + "|"]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def percent(value):
    return f"{value:+.3f} %"


def evidence(cases, value, least=10):
    """A percentage, or that there is too little to print one."""
    return percent(value) if cases >= least else "insufficient evidence"


def median(values):
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
