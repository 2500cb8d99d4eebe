"""Striping, without a Lustre: a table of mounts and an `lfs` that writes down how it was called."""

import logging

import pytest

from hpcflow.checkpoint import lustre_striping
from tests.checkpoint.jobs import save_some


@pytest.fixture
def site(tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\n"
        f"10.0.0.1@o2ib:/work {tmp_path}/work lustre rw,flock 0 0\n"
        f"tmpfs {tmp_path}/work/tmp tmpfs rw 0 0\n"
    )
    lfs = tmp_path / "bin" / "lfs"
    lfs.parent.mkdir()
    lfs.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    lfs.chmod(0o755)
    monkeypatch.setattr(lustre_striping, "MOUNTS", str(mounts))
    monkeypatch.setenv("PATH", f"{lfs.parent}:/usr/bin:/bin")
    lustre_striping.stripe.cache_clear()
    return tmp_path


def test_the_file_system_of_a_path_that_may_not_be_there_yet(site):
    assert lustre_striping.file_system(site / "work/a/b") == "lustre"
    assert lustre_striping.file_system(site / "work/tmp/a") == "tmpfs"
    assert lustre_striping.file_system(site / "workshop") == "ext4"


@pytest.mark.slow
def test_a_new_folder_is_striped_once_and_it_is_said(site, caplog):
    folder = site / "work" / "checkpoints"
    with caplog.at_level(logging.INFO):
        for step in (1, 2):
            save_some(folder, step, ranks=2)
    assert (site / "called").read_text() == f"setstripe -c -1 -S 4m {folder}\n"
    assert caplog.text.count("is on Lustre") == 1


def test_other_folders_and_those_with_files_are_left_alone(site):
    lustre_striping.stripe(site / "workshop")
    full = site / "work" / "full"
    full.mkdir(parents=True)
    (full / "file").touch()
    lustre_striping.stripe(full)
    assert not (site / "called").exists()
