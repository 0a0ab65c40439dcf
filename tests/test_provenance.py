"""Which code made a result: the commit of this repository, and of no other that the package may lie in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leadline import provenance


def said(package: Path) -> dict[str, object]:
    """What a copy of the module says where it lies."""
    program = f"import sys; sys.path.insert(0, {str(package)!r}); import provenance; print(repr(provenance.code()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return eval(done.stdout)


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    done = subprocess.run(["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_commit_and_changes_where_the_package_is_in_its_repository(tmp_path: Path) -> None:
    if not shutil.which("git"):
        pytest.skip("needs git")
    package = tmp_path / "package"
    package.mkdir()
    shutil.copy(provenance.__file__, package)
    assert said(package).keys() == {"version"}
    git(tmp_path, "init", "-q")
    assert said(package).keys() == {"version"}, "a package below somebody else's repository"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    assert said(package) == said(package) | {"commit": git(tmp_path, "rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "elsewhere").write_text("")
    assert said(package)["dirty"] is False
    (package / "other.py").write_text("")
    assert said(package)["dirty"] is True
