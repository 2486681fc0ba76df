"""Bad specs and what is said about them. Each case is a pair of files: NAME.yaml and NAME.expected."""

from pathlib import Path

import pytest

from headrace.jobs.loading import load_job_text
from headrace.kernel.errors import ExitCode, SpecError

CASES = Path(__file__).parent / "spec_errors"


@pytest.mark.parametrize("case", sorted(path.stem for path in CASES.glob("*.yaml")))
def test_bad_spec_names_place_and_cure(case: str) -> None:
    text = (CASES / f"{case}.yaml").read_text()

    with pytest.raises(SpecError) as caught:
        load_job_text(text, "job.yaml", environ={})

    assert f"{caught.value.code}: {caught.value}\n" == (CASES / f"{case}.expected").read_text()
    assert caught.value.exit_code == ExitCode.USER


def test_every_case_is_a_pair() -> None:
    specs = {path.stem for path in CASES.glob("*.yaml")}
    assert specs == {path.stem for path in CASES.glob("*.expected")}
    assert len(specs) > 50
