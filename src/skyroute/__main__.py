"""`python -m skyroute` runs the command `skyroute`."""

from skyroute.cli.main import main

if __name__ == "__main__":
    main()
