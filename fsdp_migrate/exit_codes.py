"""What the process answers with: every command keeps to these."""

DONE = 0
FINDINGS = 1
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
