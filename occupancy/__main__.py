"""`python -m occupancy`: the command line."""

from occupancy.cli import main

if __name__ == "__main__":
    main()
