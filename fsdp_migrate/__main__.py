"""`python -m fsdp_migrate`."""

from fsdp_migrate.cli import main

main()
