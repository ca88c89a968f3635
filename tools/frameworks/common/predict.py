"""What dsplan says of a configuration, asked of its binary. Standard library only."""

import json
import os
import shutil
import subprocess
import tempfile


class Refused(RuntimeError):
    """dsplan does not take the configuration; the text is its own."""


def binary(given=None):
    """The dsplan to ask: given, DSPLAN_BINARY, or the one on the PATH. None without any."""
    for candidate in (given, os.environ.get("DSPLAN_BINARY"), shutil.which("dsplan")):
        if candidate and os.path.exists(candidate):
            return os.path.abspath(candidate)
    return None


def predict(dsplan, configuration, more=()):
    """The prediction (rank 0) as an object; `more`: further options. Raises Refused."""
    with tempfile.TemporaryDirectory() as folder:
        def written(name, value):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(value, file)
            return path

        command = [dsplan, "simulate", written("config.json", configuration.model), "--training",
                   written("training.json", configuration.training), "--runtime", configuration.runtime]
        if configuration.deepspeed is not None:
            command += ["--deepspeed", written("deepspeed.json", configuration.deepspeed)]
        command += [*configuration.options, *more, "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode not in (0, 3):  # 3: it does not fit, which is an answer.
        raise Refused(f"exit code {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)
