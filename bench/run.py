#!/usr/bin/env python3
"""`make bench`: measures Seamgate beside its peers. `bench/run.py --help` tells the options."""

from seamgate_bench.cli import main

if __name__ == "__main__":
    main()
