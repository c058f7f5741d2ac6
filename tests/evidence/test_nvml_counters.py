# ruff: noqa: N802 - the test double has the functions' names
"""GPUs' counters through a fake pynvml: units, the choice between two fields, and omission of fields that a driver lacks."""

from types import SimpleNamespace

import pytest

from collbench.measuring import instruments
from collbench.measuring.counters import Gpus

THROUGHPUT_TX, THROUGHPUT_RX, XMIT_BYTES, RCV_BYTES, PCIE_TX, REPLAYS, ECC = 138, 139, 202, 204, 197, 94, 3
ALL = 2**32 - 1


class FAKEError(Exception):
    """The error of the test double."""


class FAKEPynvml:
    """A test double of pynvml. `values` are those of its one GPU by (field, scope); other fields are not supported."""

    NVMLError = FAKEError
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = THROUGHPUT_TX, THROUGHPUT_RX
    NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES = XMIT_BYTES, RCV_BYTES
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_REPLAY_COUNTER, NVML_FI_DEV_ECC_SBE_VOL_TOTAL = PCIE_TX, REPLAYS, ECC

    def __init__(self, values, reasons=0, start=""):
        self.values, self.reasons, self.start, self.open, self.asked = values, reasons, start, 0, []

    def nvmlInit(self):
        if self.start:
            raise FAKEError(self.start)
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return "FAKE GPU"

    def nvmlDeviceGetPciInfo(self, gpu):
        return SimpleNamespace(busId=b"00000000:19:00.0")

    def nvmlDeviceGetFieldValues(self, gpu, ids):
        self.asked.append(len(ids))
        values = [self.values.get(one) for one in ids]
        return [SimpleNamespace(valueType=3, nvmlReturn=3 if v is None else 0, value=SimpleNamespace(ullVal=v or 0)) for v in values]

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu):  # the newer name is not there
        return self.reasons

    def nvmlDeviceGetPowerUsage(self, gpu):
        return 412_500

    def nvmlDeviceGetClockInfo(self, gpu, kind):
        return {1: 1980, 2: 2619}[kind]


BUS = "0000:19:00.0"


def test_nvlink_counts_in_kibibytes_over_all_links_and_pcie_in_bytes():
    library = FAKEPynvml({(THROUGHPUT_TX, ALL): 100, (THROUGHPUT_RX, ALL): 50, (PCIE_TX, 0): 7, (REPLAYS, 0): 0, (ECC, 0): 2})
    gpus = Gpus.open(library)
    before = instruments.read("/nowhere", gpus)
    library.values |= {(THROUGHPUT_TX, ALL): 1124, (PCIE_TX, 0): 3, (REPLAYS, 0): 4}
    found = instruments.moved(before, instruments.read("/nowhere", gpus))
    assert found["gpus"] == {BUS: {"nvlink_tx_bytes": 1 << 20, "pcie_tx_bytes": None, "pcie_replays": 4}}
    assert found["states"][BUS]["after"] == {"temperature_c": 61, "slowed_by": []}


def test_where_links_count_for_themselves_they_are_added():
    library = FAKEPynvml({(XMIT_BYTES, 0): 100, (XMIT_BYTES, 1): 200, (RCV_BYTES, 0): 1, (XMIT_BYTES, 35): 7})
    gpus = Gpus.open(library)
    assert gpus.read()[0][BUS] == {"nvlink_tx_bytes": 307, "nvlink_rx_bytes": 1}  # also the last of as many links as NVML knows
    del library.values[XMIT_BYTES, 1]
    assert gpus.read()[0][BUS] == {"nvlink_rx_bytes": 1}  # a link that is gone is no smaller sum


def test_bytes_counted_in_32_bits_come_round_too_often_to_report_anything():
    class Short(FAKEPynvml):
        def nvmlDeviceGetFieldValues(self, gpu, ids):
            return [SimpleNamespace(valueType=1, nvmlReturn=0, value=SimpleNamespace(uiVal=5)) for _ in ids]

    whole = {"nvlink_tx_bytes": 5 * 1024, "nvlink_rx_bytes": 5 * 1024, "pcie_replays": 5, "ecc_corrected": 5}
    assert Gpus.open(Short({})).read()[0][BUS] == whole


def test_nvml_is_held_open_until_it_is_closed_and_only_fields_that_the_driver_answers_are_asked_again():
    library = FAKEPynvml({(PCIE_TX, 0): 7})
    gpus = Gpus.open(library)
    gpus.read()
    assert library.asked[0] > 30 and library.asked[1:] == [1]
    assert library.open == 1
    gpus.close()
    assert library.open == 0
    assert Gpus.open(FAKEPynvml({}, start="Driver Not Loaded")) is None


@pytest.mark.parametrize(("bits", "words"), [
    (0, []), (1, []), (0x4, ["power cap"]), (0x40 | 0x80, ["hardware thermal", "power brake"]), (0x2, []),
])  # fmt: skip
def test_clocks_have_their_units_and_what_slows_them_down_is_reported_in_words(bits, words):
    gpus = Gpus.open(FAKEPynvml({}, bits))
    assert gpus.read()[1][BUS]["slowed_by"] == words
    assert gpus.clocks()[BUS] == {"temperature_c": 61, "slowed_by": words, "power_w": 412.5, "sm_mhz": 1980, "memory_mhz": 2619}


def test_every_field_has_a_name_in_the_real_package():
    pynvml = pytest.importorskip("pynvml")
    asked = set()

    class Recorder(FAKEPynvml):
        def __getattribute__(self, name):
            asked.add(name)
            return super().__getattribute__(name)

    assert Gpus.open(Recorder({}))
    fields = {name for name in asked if name.startswith("NVML_FI_")}
    assert fields and not fields - set(dir(pynvml))
    names = ("NVLINK_THROUGHPUT_DATA_TX", "PCIE_COUNT_TX_BYTES", "PCIE_REPLAY_COUNTER")
    assert [getattr(pynvml, f"NVML_FI_DEV_{name}") for name in names] == [THROUGHPUT_TX, PCIE_TX, REPLAYS]
