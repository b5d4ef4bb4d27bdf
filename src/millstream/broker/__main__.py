"""`python -m millstream.broker`."""

from __future__ import annotations

from millstream.broker.command import main

raise SystemExit(main())
