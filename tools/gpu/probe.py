"""Says what there is to run on: the device and the versions. Exit code 1 with a sentence where there is no CUDA device.

  probe.py [--device cuda|cpu|fake]     cpu and fake need no device
"""
import importlib.metadata
import sys


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def main():
    try:
        import torch
    except ImportError as fault:
        sys.exit(f"{sys.executable} has no torch ({fault}); name one that has it with --python")
    device = "no device"
    if sys.argv[1:] in ([], ["--device", "cuda"]):
        if not torch.cuda.is_available():
            sys.exit(f"torch {torch.__version__} sees no usable CUDA device")
        device = f"{torch.cuda.get_device_name()}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
    packages = ", ".join(f"{name} {version(name)}" for name in ("transformers", "deepspeed", "peft", "accelerate"))
    print(f"finding: {device}, torch {torch.__version__}, CUDA {torch.version.cuda}, {packages}")


main()
