"""Stands for `step` in runner_test.py: writes receipts without torch. The configuration's note says what becomes of
it."""

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common.environment import environment
from common.receipt import Receipt, inputs_of

with open(sys.argv[1], encoding="utf-8") as file:
    value = json.load(file)
out = sys.argv[sys.argv.index("--out") + 1]
note = value.get("note", "")
if note == "no receipt":
    sys.exit(1)
if sys.stdin.readline().strip() != "go":
    sys.exit(1)
limit = value.get("limit_bytes")
receipt = Receipt(out, value["name"], "stub_step.py", "cpu", inputs_of({"model_type": "gpt2"}),
                  environment(limit_bytes=limit))
if note == "hang":
    time.sleep(600)
if note == "crash":
    os.abort()
need = int(note) if note.isdigit() else 0
outcome = "out_of_memory" if limit and limit < need else "ran"
receipt.finish("out_of_memory" if outcome == "out_of_memory" else "error", "a stub measures nothing")
with open(receipt.path, encoding="utf-8") as file:
    written = json.load(file)
written.update(outcome=outcome)
with open(receipt.path, "w", encoding="utf-8") as file:
    json.dump(written, file)
print(json.dumps({"name": value["name"], "outcome": outcome, "retries": 0, "message": None}))
