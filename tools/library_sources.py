"""Where the libraries' sources are, for builds that cannot link what this machine has: tools/wheel and tools/web."""
import pathlib
import tarfile

# Name, header that shows that the package is installed, the folder of it, the Debian package.
HEADERS = [("fmt", "fmt", "libfmt-dev"), ("nlohmann_json", "nlohmann", "nlohmann-json3-dev"), ("CLI11", "CLI", "libcli11-dev"),
           ("tomlplusplus", "toml++", "libtomlplusplus-dev")]


def place(path, target):
    """A link that is there once, whatever was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def sources(folder, yaml):
    """Where CMake finds each library's sources, and the licence of each."""
    found, licences = [], {}
    for name, header, package in HEADERS:
        if pathlib.Path("/usr/include", header).is_dir():
            # A folder of its own: beside it in /usr/include lie this machine's libc and its like.
            place(folder / name / "include" / header, pathlib.Path("/usr/include", header))
            found.append(f"-DFETCHCONTENT_SOURCE_DIR_{name.upper()}={folder / name}")
            licences[name] = pathlib.Path("/usr/share/doc", package, "copyright")
    if yaml and not yaml.is_dir():
        with tarfile.open(yaml) as archive:
            top = archive.getnames()[0].split("/")[0]
            archive.extractall(folder, filter="data")
        yaml = folder / top
    if yaml:
        found.append(f"-DFETCHCONTENT_SOURCE_DIR_YAML={yaml.resolve()}")
        licences["libyaml"] = yaml / "License"
    return found, licences
