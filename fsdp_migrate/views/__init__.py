"""Views of one report: they print it and change nothing."""

from collections.abc import Mapping, Sequence

from fsdp_migrate.report import Report


def rendered(
    report: Report,
    kind: str,
    steps: Sequence[tuple[str, str]] = (),
    verified: Mapping[str, object] | None = None,
) -> str:
    """The report in a format.

    Args:
        steps: what to do next, for the page that whoever runs the tool reads.
        verified: a result of `verify --json`, for those who review the change.
    """
    if kind == "json":
        from fsdp_migrate.views.json import render_json

        return render_json(report)
    if kind == "markdown":
        from fsdp_migrate.views.review import render_review

        return render_review(report, verified)
    if kind == "html":
        from fsdp_migrate.views.page import render_html

        return render_html(report, steps)
    if kind == "gitlab":
        from fsdp_migrate.views.gitlab import render_gitlab

        return render_gitlab(report)
    if kind == "junit":
        from fsdp_migrate.views.junit import render_junit

        return render_junit(report)
    from fsdp_migrate.views import ci

    if kind == "sarif":
        return ci.render_sarif(report)
    return ci.render_github(report)
