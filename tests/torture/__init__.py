"""Commands that treat the log badly for a number of rounds: python -m tests.torture.<name> --rounds N [--seed S].

    power        the power is cut under load: everything that was not synced is gone, directory entries included
    kill         SIGKILL under load
    transactions SIGKILL under transactions, plain producers and consumers that commit
    outage       the power is cut while transactions, compaction and an archive are at work
    pause        SIGSTOP of clients: who comes back after others took over writes and commits nothing
    churn        consumers come and go, in groups of both protocols
    garbage      clients that send garbage, too slowly, too much or nothing, and that never read
    soak         a mixed load for --minutes; memory over time
    truncation   the last segment is cut at every byte
    flips        random bits change on disk and in an archive
    full_disk    a file system of 8 MB runs full, and has room again (needs the right to mount)
    eio          fsync fails

Each prints a line per round and ends with 1 at the first broken promise, with the seed that shows it again.
"""
