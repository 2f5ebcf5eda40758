"""The page's style sheet: light and dark after the reader's system, light on paper."""

STYLE = """\
:root {
  color-scheme: light dark;
  --text: #1c2128; --soft: #59636e; --back: #ffffff; --panel: #f5f7f9; --line: #d4dae0;
  --original: #0969da; --migrated: #d1570a; --gap: #8250df;
  --good: #1a7f37; --bad: #cf222e; --plus: #dafbe1; --minus: #ffebe9;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --text: #e2e6ea; --soft: #9aa4ae; --back: #0f141a; --panel: #181e26; --line: #333c46;
    --original: #58a6ff; --migrated: #f0883e; --gap: #bc8cff;
    --good: #3fb950; --bad: #ff7b72; --plus: #12331d; --minus: #3d1b1d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem; max-width: 66rem; color: var(--text); background: var(--back);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.4rem; margin: 0 0 .8rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
h3 { font-size: .95rem; margin: 0 0 .2rem; }
code, pre { font: 12.5px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
.verdict { border-left: 5px solid; padding: .7rem 1rem; background: var(--panel); font-weight: 600; }
.verdict, .cause p, .plain td { overflow-wrap: anywhere; } .plain td:first-child { white-space: nowrap; }
.verdict.same { border-color: var(--good); } .verdict.different { border-color: var(--bad); }
.cause { border: 1px solid var(--line); border-radius: 6px; padding: .7rem 1rem; margin: .8rem 0; }
.cause p { margin: .2rem 0; }
.soft, .empty { color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr)); gap: 1.2rem; }
figure { margin: 0; break-inside: avoid; }
figcaption { display: flex; gap: 1rem; align-items: baseline; flex-wrap: wrap; font-weight: 600; }
.key { font-size: .8rem; font-weight: 400; color: var(--soft); }
.key::before {
  content: ""; display: inline-block; width: 1.4em; margin-right: .4em; vertical-align: middle; border-top: 3px solid;
}
.key.original::before { border-color: var(--original); }
.key.migrated::before { border-color: var(--migrated); border-top-style: dashed; }
svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--line); stroke-width: .6; } .axis { stroke: var(--soft); }
.tick { fill: var(--soft); font-size: 11px; }
.mark { stroke: var(--bad); stroke-width: 1.2; stroke-dasharray: 2 3; }
.curve { fill: none; stroke-linejoin: round; }
.curve.original { stroke: var(--original); stroke-width: 3; opacity: .65; }
.curve.migrated { stroke: var(--migrated); stroke-width: 1.6; stroke-dasharray: 6 4; }
.curve.gap { stroke: var(--gap); stroke-width: 1.6; }
.original.dot, .original.odd { fill: var(--original); } .migrated.dot, .migrated.odd { fill: var(--migrated); }
.gap.dot, .gap.odd { fill: var(--gap); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th:first-child, td:first-child, .plain td, .plain th { text-align: left; }
th { font-weight: 600; color: var(--soft); } td.off { color: var(--bad); }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .6rem; overflow-x: auto; }
pre span { display: block; min-height: 1.45em; }
.add { background: var(--plus); } .del { background: var(--minus); }
.file { font-weight: 700; } .hunk { color: var(--gap); }
summary { cursor: pointer; }
@media print {
  body { padding: 0; max-width: none; font-size: 11px; }
  pre { white-space: pre-wrap; overflow: visible; }
  details::details-content { content-visibility: visible; height: auto; }
  .verdict, pre, .add, .del { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
