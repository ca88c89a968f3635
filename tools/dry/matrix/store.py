"""Results on disk: FOLDER/STRATUM.jsonl. The first line has the versions that hold for all lines but those that say
others; each further line is a job as it was asked, and a row for each phase:

  [phase, peak requested, peak allocated, peak reserved, peak active, calls of cudaMalloc, retries]

where active is null if it equals allocated, and zeros at the end are left out."""

import json
import os
import pathlib

from .worker import WHAT


def pack(row):
    requested, allocated, reserved, active = row["peak"]
    values = [
        row["phase"],
        requested,
        allocated,
        reserved,
        None if active == allocated else active,
        row.get("mallocs", 0),
        row.get("retries", 0),
    ]
    while len(values) > 4 and not values[-1]:
        values.pop()
    return values


def unpack(values):
    phase, requested, allocated, reserved, active, mallocs, retries = values + [None, 0, 0][len(values) - 4 :]
    row = {"phase": phase, "peak": [requested, allocated, reserved, allocated if active is None else active]}
    row.update({key: count for key, count in (("mallocs", mallocs), ("retries", retries)) if count})
    return row


def read(path):
    """{name: result}, or nothing where there is no file."""
    if not os.path.exists(path):
        return {}
    found, versions = {}, {}
    for line in pathlib.Path(path).read_text().splitlines():
        value = json.loads(line)
        if "kind" in value:
            versions = value["versions"]
            continue
        stratum = pathlib.Path(path).stem
        value["job"] = {"stratum": stratum, **value["job"]}
        value.setdefault("versions", versions)
        if "rows" in value:
            value["rows"] = [unpack(row) for row in value["rows"]]
        found[value["job"]["name"]] = value
    return found


def write(path, results):
    results = list(results)
    usual = max((r["versions"] for r in results), key=lambda v: sum(r["versions"] == v for r in results), default={})
    lines = [
        {
            "kind": "dry-matrix",
            "what": ["phase", *("peak " + what for what in WHAT), "mallocs", "retries"],
            "versions": usual,
        }
    ]
    for result in results:
        line = {"job": {k: v for k, v in result["job"].items() if k != "stratum"}}
        line.update({k: v for k, v in result.items() if k not in ("job", "rows", "versions", "last_live", "seconds")})
        if result["versions"] != usual:
            line["versions"] = result["versions"]
        if "rows" in result:
            line["rows"] = [pack(row) for row in result["rows"]]
        lines.append(line)
    with open(str(path) + ".new", "w") as out:
        out.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    os.replace(str(path) + ".new", path)
