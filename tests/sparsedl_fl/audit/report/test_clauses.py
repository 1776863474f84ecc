"""Clauses are cited as the handbook has them, and a report claims nothing beyond what it has."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparsedl_fl.audit import AuditResult, LayerAudit, Membership
from sparsedl_fl.audit.report.clauses import CLAUSES, clauses_of

PAGE = (Path(__file__).parents[4] / "docs" / "handbook" / "clauses.md").read_text()
NOTHING = AuditResult((LayerAudit("a", None, "why"),))


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.place)
def test_the_handbook_has_it_with_its_words_and_source(clause):
    assert f'"{clause.quote}"' in PAGE
    assert f"]({clause.address})" in PAGE
    assert f"[{clause.source}](" in PAGE
    assert f"| {clause.place} |" in PAGE


def test_nothing_is_fulfilled():
    for text in (PAGE, *(str(one) for one in clauses_of(NOTHING))):
        assert not any(word in text.lower() for word in ("complies", "compliant", "conforms", "safe"))


def test_what_is_given_follows_from_the_audit():
    found = {one["place"]: one for one in clauses_of(NOTHING)}
    assert found["C11.2.5 (level 3)"]["gives"] == "nothing: no records were given (--records)"
    assert found["C11.2.4 (level 2)"]["gives"].startswith("nothing: no differential privacy")
    assert "OUT OF RANGE" in found["executive summary, first question"]["gives"]
    private = {"noise_multiplier": 1.0, "clipping": 0.5, "expected_batch_size": 4, "unit": "record"}
    tested = replace(NOTHING, context={"dp": private}, membership=Membership.out_of_range(3, "why"))
    found = {one["place"]: one for one in clauses_of(tested)}
    assert "noise multiplier 1, clipping 0.5, unit: record" in found["C11.2.4 (level 2)"]["gives"]
    assert "nothing can be said of these 3 records" in found["C11.2.5 (level 3)"]["gives"]
    assert not np.any(tested.membership.is_member)
