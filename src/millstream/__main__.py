"""`python -m millstream` is `millstream`."""

from millstream.cli import main

if __name__ == "__main__":
    main()
