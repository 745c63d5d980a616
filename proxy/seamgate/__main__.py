"""`python -m seamgate`: the same as the script `seamgate`."""

from seamgate.cli import main

if __name__ == "__main__":
    main(prog_name="seamgate")
