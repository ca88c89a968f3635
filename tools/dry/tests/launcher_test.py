"""What tools/dry/run does with commands, without any PyTorch. Says 77 where the libraries are not built."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
RUN = str(ROOT / "tools" / "dry" / "run")


def run(*arguments, **more):
    return subprocess.run([sys.executable, RUN, *arguments], capture_output=True, text=True, timeout=60, **more)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Launcher(unittest.TestCase):
    def test_exit_codes_are_the_commands_own(self):
        self.assertEqual(run("--", "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(run("--", "true").returncode, 0)
        self.assertEqual(run("--", "sh", "-c", "kill -9 $$").returncode, 137)

    def test_faults_are_named(self):
        for arguments, text in (([], "no command"), (["--", "no-such-command"], "no command no-such-command"),
                                (["--device", "abacus", "--", "true"], "no device abacus; there are a10"),
                                (["--device", "mi300x", "--", "true"], "gfx942"),
                                (["--capacity", "much", "--", "true"], "no number of bytes"),
                                (["--world", "4", "--rank", "4", "--", "true"], "no rank 4 of 4"),
                                (["--events", "soon", "--", "true"], "done, pending, timed or a number")):
            ended = run(*arguments)
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn(text, ended.stderr)

    @unittest.skipIf(any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))), "a driver is here")
    def test_a_real_gpu_without_a_driver_is_refused_before_anything_runs(self):
        ended = run("--device", "cuda", "--", "sh", "-c", "echo ran")
        self.assertEqual((ended.returncode, ended.stdout), (2, ""))
        self.assertIn("no NVIDIA driver", ended.stderr)

    def test_a_pytorch_without_cuda_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            torch = pathlib.Path(folder) / "torch"
            torch.mkdir()
            (torch / "__init__.py").write_text("")
            (torch / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n")
            ended = run("--", sys.executable, "-c", "", env={**os.environ, "PYTHONPATH": folder})
            self.assertIn("PyTorch 2.11.0+cpu", ended.stderr)
            self.assertIn("is built without CUDA", ended.stderr)
            (torch / "version.py").write_text("__version__ = '9.9'\ncuda: Optional[str] = '14.1'\n")
            ended = run("--", sys.executable, "-c", "", env={**os.environ, "PYTHONPATH": folder})
            self.assertIn("built for CUDA 14.1, and there are stand-ins for 12 and 13", ended.stderr)

    def test_without_a_receipt_it_says_why(self):
        for command in (["true"], [sys.executable, "-c", "print(1)"]):
            self.assertIn("CUDA was not used: no process of the command imported PyTorch", run("--", *command).stderr)
        with tempfile.TemporaryDirectory() as folder:
            torch = pathlib.Path(folder) / "torch"
            torch.mkdir()
            (torch / "__init__.py").write_text("from . import version\n__version__ = version.__version__\n")
            (torch / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda = None\n")
            ended = run("--", "sh", "-c", f"{sys.executable} -c 'import torch'", env={**os.environ, "PYTHONPATH": folder})
            self.assertIn("CUDA was not used: PyTorch 2.11.0+cpu of", ended.stderr)

    def test_a_device_that_processes_do_not_see_is_named(self):
        code = "import ctypes, sys; sys.exit(ctypes.CDLL(None).cudaSetDevice(1))"
        for devices, told in ((("--devices", "2"), False), ((), True)):
            ended = run(*devices, "--", sys.executable, "-c", code)
            self.assertEqual("--devices 2" in ended.stderr, told, ended.stderr)

    def test_a_killed_launchers_folder_is_swept(self):
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "TMPDIR": folder}
            dead = subprocess.Popen([sys.executable, RUN, "--", "sleep", "300"], env=env, stderr=subprocess.DEVNULL)
            living = subprocess.Popen([sys.executable, RUN, "--", "sleep", "300"], env=env, stderr=subprocess.DEVNULL)
            end = time.time() + 30
            while time.time() < end and len(os.listdir(folder)) < 2:
                time.sleep(.05)
            dead.kill()
            dead.wait()
            while time.time() < end and len(os.listdir(folder)) > 1:
                time.sleep(.2)
                run("--", "true", env=env)
            left = os.listdir(folder)
            self.assertEqual(len(left), 1)
            self.assertIn(f"dsplan-dry-{living.pid}-", left[0])
            living.terminate()
            living.wait()
            self.assertEqual(os.listdir(folder), [])

    def test_experts_are_routed_by_a_rule_that_is_known(self):
        self.assertIn("balanced, worst, capacity:F", run("--routing", "fair", "--", "true").stderr)

    def test_what_was_there_before_is_found(self):
        """A sitecustomize of the user's, and what stood in PYTHONPATH and LD_PRELOAD."""
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "sitecustomize.py").write_text("import os\nos.environ['MINE'] = 'ran'\n")
            code = "import os, ctypes; print(os.environ['MINE'], hasattr(ctypes.CDLL(None), 'cudaMalloc'))"
            ended = run("--", sys.executable, "-c", code, env={**os.environ, "PYTHONPATH": folder})
            self.assertEqual(ended.stdout, "ran True\n")

    def test_no_child_outlives_it(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with tempfile.TemporaryDirectory() as folder:
                pids = pathlib.Path(folder, "pids")
                script = f"sleep 300 & echo $! >> {pids}; setsid sleep 301 & echo $! >> {pids}; wait"
                launcher = subprocess.Popen([sys.executable, RUN, "--", "sh", "-c", script], stderr=subprocess.DEVNULL)
                end = time.time() + 30
                while time.time() < end and (not pids.exists() or len(pids.read_text().split()) < 2):
                    time.sleep(.05)
                children = [int(pid) for pid in pids.read_text().split()]
                self.assertEqual(len(children), 2)
                self.assertTrue(all(map(alive, children)))
                launcher.send_signal(number)
                launcher.wait(timeout=30)
                while time.time() < end and any(map(alive, children)):
                    time.sleep(.05)
                self.assertFalse(any(map(alive, children)), f"after {number.name}")


if __name__ == "__main__":
    if not list(ROOT.glob("build/*/dry/libdsplan_dry.so")) and not os.environ.get("DSPLAN_DRY_LIBRARIES"):
        sys.exit(77)
    unittest.main()
