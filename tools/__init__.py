"""What develops collbench: the tools of `make`, the pages of the site, and the benchmarks."""
