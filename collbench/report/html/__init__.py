"""The report as one HTML file: everything that a run says, offline, with a table beside every chart."""
