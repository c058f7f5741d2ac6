"""python -m tests.fake_gpu.facts FOLDER HEADER…   prints how headers pass the parameters of the functions of the double, as TOML.

FOLDER is that of the double: nccl or hip. The stored facts of parameters are this output.
"""

import sys
from pathlib import Path

from tests.fake_gpu.facts import exported, read_headers

if __name__ == "__main__":
    real = read_headers(*map(Path, sys.argv[2:])).parameters
    print("[headers.parameters]")
    for function in sorted(exported(sys.argv[1]).keys() & real.keys()):
        print(f'{function} = "{" ".join(real[function])}"')
