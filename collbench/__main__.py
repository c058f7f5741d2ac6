"""python -m collbench: the same as the command `collbench`."""

from collbench.cli.main import main

if __name__ == "__main__":
    main()
