"""The report as one HTML file: all results of a run, readable offline, with a table beside every chart."""
