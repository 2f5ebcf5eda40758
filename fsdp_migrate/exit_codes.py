"""What the process answers with: every command keeps to these."""

import click

DONE = 0
FINDINGS = 1
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


class Unusable(click.ClickException, ValueError):
    """What the user gave cannot be used, as settings or a recording: the message says why."""

    exit_code = USAGE
