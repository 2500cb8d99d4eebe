"""A thousand flipped bits, torn blocks and cuts of each kind in files of both forms."""

from __future__ import annotations

import pytest

from hpcflow.checkpoint import checkpoint_directory
from tests.checkpoint.damaging import DAMAGES, check, damage_often, files_of
from tests.checkpoint.jobs import save_some

FORMS = {"sharded": dict(ranks=3), "one file": dict(ranks=1, form="parallel")}
pytestmark = [pytest.mark.chaos, pytest.mark.limit(900)]


@pytest.fixture(params=FORMS)
def saved(request, tmp_path):
    values = save_some(tmp_path, 1, rows=20, **FORMS[request.param])
    return checkpoint_directory.find_checkpoints(tmp_path)[0].path, values


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_thousand_times(saved, damage):
    path, values = saved
    assert damage_often(path, values, DAMAGES[damage], 1000, seed=11) > 500


def test_cut_off_at_each_thousandth(saved):
    path, values = saved
    for file in files_of(path):
        whole = file.read_bytes()
        for part in range(1000):
            file.write_bytes(whole[: len(whole) * part // 1000])
            assert check(path, file.name, values)
        file.write_bytes(whole)
