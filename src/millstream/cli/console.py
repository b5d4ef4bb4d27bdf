"""`millstream console`: a link to the page of the application that runs in the data folder."""

from __future__ import annotations

import webbrowser
from typing import Annotated
from urllib.parse import urlsplit

import typer

from millstream.cli.common import Common, command
from millstream.settings import MillstreamError

Open = Annotated[bool, typer.Option("--open", help="open the page in a browser")]


@command(example="millstream console --open", shows=("data",))
def console(at: Common, open_: Open = False) -> None:
    """Print a one-time link to the live page of the application that runs in the data folder.

    A link works once, for a day. A browser that has used one stays signed in for 30 days, restarts included.
    """
    from millstream.run.runfile import current
    from millstream.web.access import FILE, Access

    running = current(at.settings.data)
    if running is None:
        raise MillstreamError(
            f"nothing runs in {at.settings.data}. Start an application with `millstream run`, or give its folder with --data."
        )
    if "console" not in running.addresses:
        raise MillstreamError(f"the page of {running.app} is not ready yet; try again in a moment.")
    page = urlsplit(running.addresses["console"])
    access = Access(page.port or 80, at.settings.data / FILE)
    try:
        links = [
            f"{origin.rstrip('/')}/?token={access.new_token()}"
            for origin in (f"{page.scheme}://{page.netloc}", *at.settings.console_origins)
        ]
    except OSError as error:
        raise MillstreamError(
            f"no link can be made: {at.settings.data / FILE} cannot be written: {error.strerror}."
            " Only the user who runs the application can make one."
        ) from error
    if at.json:
        at.out.document({"app": running.app, "links": links})
    else:
        for link in links:
            at.out.text(link)
    if open_:
        webbrowser.open(links[0])
