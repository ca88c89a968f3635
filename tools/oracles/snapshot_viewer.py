#!/usr/bin/env python3
"""What PyTorch's own viewer makes of predicted snapshots; writes tests/witnesses/snapshot_viewer.json.

  tools/oracles/snapshot_viewer.py --dsplan build/release/dsplan [FILE]

Each snapshot that `dsplan emit --format snapshot` writes goes through torch.cuda._memory_viz: its summary of segments, its
listing of the trace, and both pages that it plots. Needs PyTorch, no GPU.
"""
import argparse
import json
import pathlib
import pickle
import re
import subprocess
import tempfile

import torch
from torch.cuda import _memory_viz as viewer

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = ["tiny-gpt2 --hardware h100-sxm", "tiny-llama --zero-stage 3 --gpus 4 --hardware h100-sxm --checkpoint full",
         "tiny-llama --hardware h100-sxm --alloc-conf expandable_segments:True"]


def seen(program, words):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "predicted.pickle")
        subprocess.run([program, "emit", *words.split(), "--format", "snapshot", "--out", str(path)], check=True, capture_output=True)
        data = pickle.loads(path.read_bytes())
    summary, listing = viewer.segsum(data), viewer.trace(data)
    pages = {name: getattr(viewer, name)(data) for name in ("trace_plot", "segment_plot")}
    assert all("</html>" in page or "<script" in page for page in pages.values())
    return {"words": words, "segments": int(re.search(r"^segments: (\d+)", summary, re.M)[1]),
            "entries": int(re.search(r"^(\d+) entries", listing, re.M)[1]),
            "total_reserved": re.search(r"total_reserved: (\S+)", summary)[1],
            "total_allocated": re.search(r"total_allocated: (\S+)", summary)[1],
            "pages": sorted(pages)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsplan", required=True)
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=ROOT / "tests/witnesses/snapshot_viewer.json")
    given = parser.parse_args()
    result = {"source": "tools/oracles/snapshot_viewer.py", "versions": {"torch": torch.__version__.split("+")[0]},
              "cases": [seen(given.dsplan, words) for words in CASES]}
    given.file.write_text(json.dumps(result, indent=1) + "\n")


main()
