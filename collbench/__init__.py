"""collbench: is the network as fast as what you paid for, and did the last upgrade make it worse?"""

__version__ = "0.1.0"
