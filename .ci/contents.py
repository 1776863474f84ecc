"""The wheel holds every file of both packages and nothing else; the source distribution the whole project.

Run from the checkout, with the folder of both: python .ci/contents.py dist
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

PACKAGES = ("sparsedl/", "sparsedl_fl/")


def main(folder: Path) -> None:
    """Compare with what git tracks."""
    tracked = set(subprocess.check_output(["git", "ls-files"], text=True).splitlines())
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        installed = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(source) as archive:
        shipped = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    differences = {
        "not in the wheel": {name for name in tracked if name.startswith(PACKAGES)} - installed,
        "in the wheel, and not in the project": installed - tracked,
        "not in the source distribution": tracked - shipped,
        "in the source distribution, and not in the project": {
            name for name in shipped - tracked if name not in ("PKG-INFO", "setup.cfg") and ".egg-info/" not in name
        },
    }
    for what, names in differences.items():
        if names:
            print(f"{what}: {', '.join(sorted(names))}", file=sys.stderr)
    if any(differences.values()):
        raise SystemExit(1)
    print(f"{wheel.name}: {len(installed)} files; {source.name}: {len(shipped)} files")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
