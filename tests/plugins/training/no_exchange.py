"""collbench whose DistributedDataParallel trains every rank alone, as a rank of torchrun: the arguments of collbench follow."""

from torch.nn import parallel

from collbench.cli.main import main

parallel.DistributedDataParallel = lambda model, **_settings: model
main()
