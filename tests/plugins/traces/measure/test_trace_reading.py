"""A trace of a million operations is read in 10 s of CPU time and 1 GB, in each format."""

import pytest

from tools.benchmarks import trace_files, trace_reading

FORMS = {**trace_reading.FORMATS, "Flight Recorder, pickle": trace_files.flight_recorder_pickle}


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_a_million_operations(form, tmp_path):
    FORMS[form](tmp_path, trace_reading.OPERATIONS, 1)
    reading = trace_reading.read(tmp_path)
    assert reading.operations == trace_reading.OPERATIONS
    assert reading.cpu_s < 10  # not the wall time: other tests may run beside this one
    assert reading.peak_bytes < 1e9


@pytest.mark.long
def test_it_has_the_time_and_the_memory_of_each_format():
    outcome = trace_reading.measure(2, operations=200, ranks=4)
    assert len(outcome.figures) == 2 * len(trace_reading.FORMATS)
    assert {each["operations"] for each in outcome.raw} == {200}
