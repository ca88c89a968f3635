#!/usr/bin/env python3
"""Writes tests/data/snapshots: small memory snapshots, laid out as PyTorch 2.6 lays them out, pickled by Python.

  tools/oracles/snapshots.py [FOLDER]

The runs in them are made up, since no GPU was at hand: each is worked out by the rules of
c10/cuda/CUDACachingAllocator.cpp, not by dsplan. What they prove is the file format under every pickle protocol, and
that the replay follows those rules. Written with CPython 3.11; the files are the same byte for byte every time.
Standard library only.
"""
import pathlib
import pickle
import sys

MIB = 1 << 20
SMALL, LARGE, OWN = 0x7F0000000000, 0x7F0000200000, 0x7F0002000000

TRAIN = [{"name": "forward", "filename": "/home/user/train.py", "line": 41},
         {"name": "übung", "filename": "/home/user/train.py", "line": 7}]


def entry(action, addr, size, time, frames=TRAIN, stream=0):
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": time, "frames": frames,
            "compile_context": "N/A", "user_metadata": ""}


def block(address, size, requested, state, frames=TRAIN):
    return {"address": address, "size": size, "requested_size": requested, "state": state,
            "frames": frames if state != "inactive" else []}


def segment(address, size, kind, blocks):
    active = [b for b in blocks if b["state"] != "inactive"]
    return {"device": 0, "address": address, "total_size": size,
            "allocated_size": sum(b["size"] for b in active if b["state"] == "active_allocated"),
            "active_size": sum(b["size"] for b in active), "requested_size": sum(b["requested_size"] for b in active),
            "stream": 0, "segment_type": kind, "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
            "blocks": blocks}


def snapshot():
    trace = [
        entry("segment_alloc", SMALL, 2 * MIB, 1), entry("alloc", SMALL, 100, 2), entry("alloc", SMALL + 512, 1000, 3),
        # A request between 1 and 10 MiB opens a segment of 20 MiB; freed, it is whole again.
        entry("segment_alloc", LARGE, 20 * MIB, 4), entry("alloc", LARGE, 3_000_000, 5),
        entry("free_requested", LARGE, 3_000_000, 6), entry("free_completed", LARGE, 3_000_000, 7),
        entry("alloc", LARGE, 12_000_000, 8), entry("free_requested", LARGE, 12_000_000, 9),
        entry("free_completed", LARGE, 12_000_000, 10),
        # torch.cuda.empty_cache().
        entry("segment_free", LARGE, 20 * MIB, 11),
        entry("segment_alloc", OWN, 34 * MIB, 12), entry("alloc", OWN, 34_000_000, 13),
        # Another stream still uses this one.
        entry("free_requested", SMALL + 512, 1000, 14),
        {"action": "oom", "device_free": 5 * MIB, "size": 1 << 40, "stream": 0, "time_us": 15, "frames": TRAIN},
        entry("snapshot", 0, 34_001_536, 16, []),
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
                "expandable_segments": False, "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False,
                "pinned_use_cuda_host_register": False,
                "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)}}
    return {
        "segments": [
            segment(SMALL, 2 * MIB, "small", [
                block(SMALL, 512, 100, "active_allocated"), block(SMALL + 512, 1024, 1000, "active_pending_free"),
                block(SMALL + 1536, 2 * MIB - 1536, 0, "inactive")]),
            # 34,000,000 rounds to 34,000,384, and the segment's 34 MiB leave more than 1 MiB: it is split.
            segment(OWN, 34 * MIB, "large", [
                block(OWN, 34_000_384, 34_000_000, "active_allocated"),
                block(OWN + 34_000_384, 34 * MIB - 34_000_384, 0, "inactive")]),
        ],
        "device_traces": [trace, []],
        "allocator_settings": settings,
        "external_annotations": [{"name": "step", "stage": "START", "device": 0, "time_us": 1}],
    }


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                          pathlib.Path(__file__).resolve().parents[2] / "tests/data/snapshots")
    folder.mkdir(parents=True, exist_ok=True)
    for protocol in range(2, 6):
        (folder / f"run-protocol{protocol}.pickle").write_bytes(pickle.dumps(snapshot(), protocol))
    wrapped = snapshot()
    # The history is a ring: its oldest entries are lost.
    wrapped["device_traces"][0] = wrapped["device_traces"][0][5:]
    (folder / "run-wrapped.pickle").write_bytes(pickle.dumps(wrapped, 4))
    moved = snapshot()
    moved["device_traces"][0][7]["addr"] += 512
    moved["device_traces"][0][8]["addr"] += 512
    moved["device_traces"][0][9]["addr"] += 512
    (folder / "run-moved.pickle").write_bytes(pickle.dumps(moved, 4))


if __name__ == "__main__":
    main()
