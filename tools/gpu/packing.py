"""Packs what stages wrote into few archives, each below a size, with a manifest; and puts it in its place again.

The way back from such a machine may take few files of limited size: hence few archives, receipts before all else,
snapshots in parts, and a manifest that says what was left out.
"""
import hashlib
import json
import lzma
import pathlib
import tarfile

MOST_BYTES = 16 * 2**20 - 2**18  # of one archive: 16 MiB with a margin
MOST_FILES = 8
KINDS = {"receipts": (".json", ".csv", ".trace"), "logs": (".log", ".txt"),
         "snapshots": (".pickle", ".pickle.xz", ".pkl", ".pkl.xz")}
MOST_LOG = 2**20  # bytes kept of one log; the end says more than the beginning
BESIDES_SNAPSHOTS = 4  # manifest.json, table.txt, receipts.tar.xz, logs.tar.xz


def kind_of(path):
    return next((kind for kind, endings in KINDS.items() if path.name.endswith(endings)), None)


def packed_size(path):
    """Bytes that the file takes in an archive, a little too many."""
    data = path.read_bytes()
    if path.name.endswith(".xz"):
        return len(data) + 2048
    return len(lzma.compress(data, preset=1)) + 2048


def write_archive(archive, members, work):
    temporary = archive.with_suffix(".part")
    with lzma.open(temporary, "wb", preset=1) as compressed, tarfile.open(fileobj=compressed, mode="w|") as tar:
        for path in members:
            tar.add(path, arcname=path.relative_to(work).as_posix(), recursive=False)
    temporary.replace(archive)


def in_parts(paths, most_parts):
    """Lists of files that fit into one archive each, and [(file, why)] of what does not."""
    parts, sizes, left_out = [], [], []
    for path in paths:
        size = packed_size(path)
        if size > MOST_BYTES:
            left_out.append((path, f"{size} bytes packed, more than one archive takes"))
            continue
        place = next((index for index, used in enumerate(sizes) if used + size <= MOST_BYTES), None)
        if place is None and len(parts) < most_parts:
            parts.append([])
            sizes.append(0)
            place = len(parts) - 1
        if place is None:
            left_out.append((path, "no archive had room for it"))
            continue
        parts[place].append(path)
        sizes[place] += size
    return parts, left_out


def shorten_logs(paths):
    for path in paths:
        data = path.read_bytes()
        if len(data) > MOST_LOG:
            path.write_bytes(b"(the beginning is left out)\n" + data[-MOST_LOG:])


def pack(work, out, table, first=(), kinds=tuple(KINDS)):
    """Writes manifest.json, table.txt and the archives into out; returns the manifest.

    work: the folder that holds one folder per stage. first: names of stage folders whose files get room first.
    """
    out.mkdir(parents=True, exist_ok=True)
    places = {name: index for index, name in enumerate(first)}
    files = sorted((path for path in work.rglob("*") if path.is_file()),
                   key=lambda path: (places.get(path.relative_to(work).parts[0], len(places)), str(path)))
    by_kind = {kind: [path for path in files if kind_of(path) == kind] for kind in kinds}
    shorten_logs(by_kind.get("logs", ()))
    manifest = {"schema": "dsplan.manifest/1", "files": [], "left_out": []}
    for kind, paths in by_kind.items():
        for old in out.glob(f"{kind}*.tar.xz"):
            old.unlink()
        most_parts = MOST_FILES - BESIDES_SNAPSHOTS if kind == "snapshots" else 1
        parts, left_out = in_parts(paths, most_parts)
        for index, part in enumerate(parts, 1):
            archive = out / (f"{kind}.tar.xz" if index == 1 else f"{kind}-{index}.tar.xz")
            write_archive(archive, part, work)
            manifest["files"] += [{"path": path.relative_to(work).as_posix(), "bytes": path.stat().st_size,
                                   "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "archive": archive.name}
                                  for path in part]
        manifest["left_out"] += [{"path": path.relative_to(work).as_posix(), "why": why} for path, why in left_out]
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    (out / "table.txt").write_text(table + "\n", encoding="utf-8")
    return manifest


def members(archive):
    """{path inside: bytes} of an archive; only plain files with tame names."""
    found = {}
    with tarfile.open(archive, "r:xz") as tar:
        for member in tar:
            path = pathlib.PurePosixPath(member.name)
            if member.isfile() and not path.is_absolute() and ".." not in path.parts:
                found[member.name] = tar.extractfile(member).read()
    return found
