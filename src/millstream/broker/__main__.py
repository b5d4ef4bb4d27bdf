"""``python -m millstream.broker``."""

from millstream.broker.command import main

raise SystemExit(main())
