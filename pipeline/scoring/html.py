"""The scoring report as one page: no script, no request, everything from outside escaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ontrack.operators.scoring_extras import ExtraKind
from ontrack.operators.scoring_results import OVER_BUDGET
from ontrack.pipeline.scoring.group import Group, Rate
from ontrack.pipeline.scoring.report import GROUPS, Report
from ontrack.pipeline.scoring.svg import Bar, Series, bars, escape, exceeding, histograms
from ontrack.pipeline.scoring.table import figures, notes, percent
from ontrack.pipeline.scoring.thresholds import Check

_KINDS: Final = tuple(kind.value for kind in ExtraKind)
_TOOLS_SHOWN_MAX = 20
_GOOD = '<b class="good">passed</b>'
_BAD = '<b class="bad">failed</b>'

_STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1c2430;--soft:#5d6a7c;--line:#dfe4ea;
--passing:#2a9d78;--failing:#d0643b;--other:#8a94a3;--recovery:#4f83cc;--redundant:#c8443f;
--exploration:#e0a030;--write:#e0a030;--destructive:#c8443f;--unknown:#7d6bb5;--accent:#3557a8}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1a2029;--ink:#e4e9f0;--soft:#98a5b6;
--line:#2c3542;--accent:#8fb0ff}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}h1{font-size:24px;margin:0 0 2px}
h2{font-size:16px;margin:0 0 10px}p{margin:4px 0}.soft,.empty{color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:12px;margin:18px 0}
.card,section{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:14px 16px}
.card b{display:block;font-size:24px;line-height:1.25}.card span{color:var(--soft);font-size:13px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:12px}
section{margin-bottom:12px;min-width:0}.plots section{margin:0}
.plots{align-items:start;margin-bottom:12px}.wide{overflow-x:auto}
section p.soft{font-size:13px;margin:8px 0 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--line);text-align:right;
vertical-align:top}
th:first-child,td:first-child{text-align:left}th{font-weight:600;color:var(--soft)}
tr:last-child td{border-bottom:0}.worst td,.words td{text-align:left}.worst th{text-align:left}
.worst{table-layout:fixed;min-width:720px}.worst td{overflow-wrap:anywhere}
.worst td:first-child{font-weight:600}.worst th:nth-child(1),.worst th:nth-child(2){width:19%}
.worst th:nth-child(3){width:90px}section>ul{margin:0;padding-left:18px}
.worst ul{margin:0;padding-left:16px}.bad{color:var(--redundant)}.good{color:var(--passing)}
.legend span{display:inline-block;margin-right:14px;font-size:13px;color:var(--soft)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font-size:12.5px}
svg .label{text-anchor:end}svg .tick,svg .axis{text-anchor:middle}svg .title,
svg .value{fill:var(--ink)}svg .grid{stroke:var(--line)}svg .mark{stroke:var(--soft);
stroke-dasharray:4 3}svg .curve{fill:none;stroke:var(--accent);stroke-width:2}
svg .dot{fill:var(--accent)}
"""
_COLOURS = (
    *GROUPS,
    "recovery",
    "redundant",
    "exploration",
    "write",
    "destructive",
    "unknown",
)
_FILLS = "".join(f".{name}{{fill:var(--{name});background:var(--{name})}}" for name in _COLOURS)


def page(report: Report, sources: Sequence[str], checks: Sequence[Check] = ()) -> str:
    """Return the page.

    Parameters
    ----------
    sources
        What was read, as the user named it.
    checks
        Thresholds, where some were given.
    """
    body = [
        "<h1>Paths of agent runs</h1>",
        f'<p class="soft">{report.everything.runs:,} runs from {escape(", ".join(sources))}</p>',
        _cards(report),
        _checks(checks),
        '<div class="plots">',
        _steps(report),
        _flags(report),
        _ratios(report),
        _extras(report),
        _unsafe(report),
        _rules(report),
        "</div>",
        _worst(report),
        _figures(report),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>OnTrack: paths of agent runs</title><style>{_STYLE}{_FILLS}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _cards(report: Report) -> str:
    passing, everything = report.groups["passing"], report.everything
    unsafe = report.unsafe_rate_checked
    waste = everything.waste
    share = f"{waste / total:.1%}" if (total := _calls(everything)) else "0 %"
    cards = [
        (percent(Rate.of(passing.runs, everything.runs)), "runs passed", ""),
        (_number(passing.steps.quantile(0.5)), "median steps of passing runs", ""),
        (percent(passing.rate(OVER_BUDGET)), "of passing runs over budget", ""),
        (f"{waste:,}", f"calls to be saved, {share} of all", ""),
        (
            percent(unsafe) if unsafe.n else "not checked",
            "runs with an unsafe call" if unsafe.n else "unsafe calls: no task says what it allows",
            "bad" if unsafe.hits else "",
        ),
    ]
    shown = "".join(
        f'<div class="card"><b class="{style}">{escape(value)}</b><span>{escape(what)}</span></div>'
        for value, what, style in cards
    )
    return f'<div class="cards">{shown}</div>'


def _checks(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    rows = "".join(
        f"<tr><td>{_GOOD if each.ok else _BAD} {escape(each.name)}</td>"
        f"<td>{escape(each.text)}</td></tr>"
        for each in checks
    )
    return _section("Thresholds", f'<div class="wide"><table class="words">{rows}</table></div>')


def _steps(report: Report) -> str:
    series = [Series(name, name, dict(report.groups[name].steps.counts)) for name in GROUPS]
    note = (
        "The passing column carries the information: a failing run has an unusual path almost by "
        "definition. Each panel is in shares of its own runs."
    )
    return _section("Steps by outcome", histograms(series, "steps of a run"), note)


def _flags(report: Report) -> str:
    passing = report.groups["passing"]
    marks = [(point.steps, f"p{point.quantile * 100:.0f}") for point in report.flag_curve()]
    rate = passing.rate(OVER_BUDGET)
    note = (
        "Share of passing runs above one budget for all. A budget at the median flags half of them "
        f"whatever they do, one at p99 nothing. The budgets in use flag {percent(rate)}."
    )
    plot = exceeding(dict(passing.steps.counts), marks, "a budget of so many steps")
    return _section("What a budget would flag", plot, note)


def _ratios(report: Report) -> str:
    series = [Series(name, name, dict(report.groups[name].repeat_ratio.counts)) for name in GROUPS]
    limit = report.repeat_ratio_max
    plot = histograms(series, "repeat ratio", [(limit, f"look above {limit:g}")], top=1.0)
    note = (
        "1 - different tools / calls. It does not say which kind of loop a run is in; it says: "
        "look at the trace."
    )
    return _section("Repeat ratio", plot, note)


def _extras(report: Report) -> str:
    styles = dict(zip(_KINDS, ("recovery", "redundant", "exploration"), strict=True))
    rows = [
        Bar(
            f"{name} · {kind.replace('_', ' ')}",
            ((count, styles[kind], f"{name}: {count:,} {kind.replace('_', ' ')}"),),
        )
        for name in GROUPS
        for kind in _KINDS
        if (count := report.groups[name].extras[kind])
    ]
    note = (
        "Every call over budget is exactly one of these. A recovery follows an error and counts as "
        "no waste unless asked for; a redundant repeat brought what an earlier call had brought."
    )
    return _section("Calls over budget, by kind", bars(rows, "calls over budget by kind"), note)


def _unsafe(report: Report) -> str:
    if not report.everything.with_allowance:
        told = "No task declares <code>allowed</code>, so nothing was checked."
        return _section("Unsafe calls by tool", f'<p class="empty">{told}</p>')
    rows = [
        Bar(tool, ((calls, effect, f"{tool}, {effect}: {calls:,} calls"),))
        for (tool, effect), calls in report.unsafe_tools.most_common(_TOOLS_SHOWN_MAX)
    ]
    note = (
        f"{percent(report.unsafe_rate)} of all runs made at least one call outside of their task's "
        f"allowance, {percent(report.unsafe_rate_checked)} of those whose task declares one."
    )
    legend = _legend("write", "destructive", "unknown")
    return _section("Unsafe calls by tool", legend + bars(rows, "unsafe calls by tool"), note)


def _rules(report: Report) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in notes(report))
    return _section("What runs were measured against", f"<ul>{items}</ul>")


def _worst(report: Report) -> str:
    if not report.worth:
        return _section("Most worth looking at", '<p class="empty">nothing stands out</p>')
    rows = "".join(
        f"<tr><td>{escape(each.run_id)}</td><td>{escape(each.task_id or '')}</td>"
        f"<td>{escape(each.outcome)}</td><td><ul>"
        + "".join(f"<li>{escape(reason)}</li>" for reason in each.reasons)
        + "</ul></td></tr>"
        for each in report.worth
    )
    head = "<tr><th>run</th><th>task</th><th>outcome</th><th>why</th></tr>"
    table = f'<div class="wide"><table class="worst">{head}{rows}</table></div>'
    return _section("Most worth looking at", table)


def _figures(report: Report) -> str:
    headings = "".join(f"<th>{escape(name)}</th>" for name in ("", *report.groups))
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in figures(report)
    )
    note = "Rates count runs and carry Wilson's 95 % interval, which takes runs as independent."
    return _section(
        "All figures", f'<div class="wide"><table><tr>{headings}</tr>{rows}</table></div>', note
    )


def _section(title: str, content: str, note: str = "") -> str:
    below = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{content}{below}</section>"


def _legend(*names: str) -> str:
    shown = "".join(f'<span><i class="{name}"></i>{name}</span>' for name in names)
    return f'<p class="legend">{shown}</p>'


def _calls(group: Group) -> float:
    return sum(steps * count for steps, count in group.steps.counts.items())


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
