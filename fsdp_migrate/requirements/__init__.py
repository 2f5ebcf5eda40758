"""What a project asks for beside its code: the release of torch, and the package that migrated code imports."""
