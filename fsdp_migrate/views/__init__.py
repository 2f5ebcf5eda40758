"""Views of one report: they print it and change nothing."""

from collections.abc import Sequence

from fsdp_migrate.report import Report


def rendered(report: Report, kind: str, steps: Sequence[tuple[str, str]] = ()) -> str:
    """The report in a format; `steps` are what to do next, for those that people read."""
    if kind == "json":
        from fsdp_migrate.views.json import render_json

        return render_json(report)
    if kind == "markdown":
        from fsdp_migrate.views.markdown import render_markdown

        return render_markdown(report, steps)
    if kind == "html":
        from fsdp_migrate.views.page import render_html

        return render_html(report, steps)
    from fsdp_migrate.views import ci

    return ci.render_sarif(report) if kind == "sarif" else ci.render_github(report)
