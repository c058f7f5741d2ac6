"""CB2221 to CB2225, counters of NICs: errors, flaps, losses, congestion. They count since they were last reset, which nobody tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from collbench.machine.doctor.finding import Finding, Severity, listed
from collbench.machine.doctor.view import View

_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_FLAPS = ("link_downed",)
_LOSSES = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans", "retry_exceeded_err", "port_xmit_discards")
_CONGESTION = ("rp_cnp_handled", "np_ecn_marked_roce_packets")
_WAIT = "port_xmit_wait"
_FEWEST_SIBLINGS, _TIMES, _LONG_WAIT = 3, 10, 1_000_000_000
_MANY_ERRORS, _MANY_FLAPS, _MANY_LOSSES, _MUCH_CONGESTION = 100, 10, 1000, 1_000_000
_TWICE = "read the counters before and after a run: what grows is what counts"


def errors(view: View) -> Iterator[Finding]:
    """CB2221: bits that arrived wrongly."""
    remedy = f"clean or change the cable and its ends; {_TWICE}"
    yield from _counted(view, "CB2221", "warning", what="errors on the wire of", names=_ERRORS, many=_MANY_ERRORS, remedy=remedy)


def flaps(view: View) -> Iterator[Finding]:
    """CB2222: links that went down again and again; the counter stops at 255."""
    remedy = f"change the cable or transceiver, and look at the switch's log; {_TWICE}"
    yield from _counted(
        view, "CB2222", "warning", what="the link went down again and again:", names=_FLAPS, many=_MANY_FLAPS, remedy=remedy
    )


def losses(view: View) -> Iterator[Finding]:
    """CB2223: packets that were lost or overtaken: congestion, above all of RoCE without flow control; adaptive routing overtakes, too."""
    remedy = f"check priority flow control and ECN along the way, on hosts and switches; {_TWICE}"
    what = "packets were lost, or came out of order, on"
    yield from _counted(view, "CB2223", "note", what=what, names=_LOSSES, many=_MANY_LOSSES, remedy=remedy)


def congestion(view: View) -> Iterator[Finding]:
    """CB2224: RoCE was told to slow down very often. Some of it is how congestion control works."""
    remedy = f"look for many senders to one receiver, and for ECN thresholds that are too low on the switches; {_TWICE}"
    yield from _counted(
        view, "CB2224", "note", what="congestion was signalled very often on", names=_CONGESTION, many=_MUCH_CONGESTION, remedy=remedy
    )


def waits(view: View) -> Iterator[Finding]:
    """CB2225: an InfiniBand port that waited far longer for credits than its siblings; all of them wait somewhat."""
    ports = [(nic, port) for nic in view.rdma for port in nic.ports if port.link_layer == "infiniband" and _WAIT in port.counters]
    if len(ports) < _FEWEST_SIBLINGS:
        return
    usual = median(port.counters[_WAIT] for _, port in ports)
    long = [(nic, port) for nic, port in ports if port.counters[_WAIT] >= max(_TIMES * usual, _LONG_WAIT)]
    if long:
        evidence = listed([f"{nic.name} port {port.number}: {_WAIT} {port.counters[_WAIT]}" for nic, port in long], 4)
        yield view.finding(
            "CB2225", "note", f"waited far longer to send than {len(ports) - len(long)} siblings: {listed([nic.name for nic, _ in long])}",
            f"{evidence}; the median of all is {usual:g}", f"look at the switch port, and at who receives from this rail; {_TWICE}",
        )  # fmt: skip


def _counted(view: View, code: str, severity: Severity, *, what: str, names: Sequence[str], many: int, remedy: str) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    for nic in view.rdma:
        for port in nic.ports:
            high = [f"{name} {port.counters[name]}" for name in names if port.counters.get(name, 0) >= many]
            if high:
                found.setdefault(nic.name, []).append(f"{nic.name} port {port.number}: {', '.join(high)}")
    if found:
        evidence = listed([text for texts in found.values() for text in texts], 4)
        yield view.finding(code, severity, f"{what} {listed(list(found))}", evidence, remedy)


RULES = (errors, flaps, losses, congestion, waits)
