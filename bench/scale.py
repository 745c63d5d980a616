#!/usr/bin/env python3
"""`make scale-connections` and `make soak`: is Seamgate's cost flat? `bench/scale.py --help` tells the options."""

from seamgate_bench.scale import main

if __name__ == "__main__":
    main()
