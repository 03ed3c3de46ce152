"""CSS and JavaScript that are inlined: the style of the plan page, the sorting of its tables, notebooks' pictures."""

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fbfbf9; --panel: #ffffff; --ink: #1d2126; --soft: #5d6670; --line: #e3e4e0; --code: #f1f2ee;
  --compute: #4f7cac; --idle: #a39a8b; --talk: #c8553d; --held: #7a9e7e; --mark: #c8553d; --focus: #2f6fb3;
  --tint: 55% 86%; --edge: 35% 62%;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #15181c; --panel: #1c2026; --ink: #e4e6e8; --soft: #9aa4ae; --line: #2d333b; --code: #252b32;
    --compute: #7ba6d6; --idle: #8f877b; --talk: #e58a72; --held: #8db892; --mark: #e58a72; --focus: #8bbcf0;
    --tint: 28% 30%; --edge: 30% 52%;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1160px; margin: 0 auto; padding: 40px 24px 72px; }
h1 { font-size: 26px; line-height: 1.25; font-weight: 650; letter-spacing: -0.01em; margin: 0; }
h1, .card h3 { overflow-wrap: anywhere; }
h2 { font-size: 17px; font-weight: 650; margin: 44px 0 12px; }
p { margin: 0 0 12px; max-width: 72ch; }
.sub, .note { color: var(--soft); }
.sub { margin: 4px 0 0; }
.note { font-size: 13px; }
.chart + .note { margin: 8px 0 12px; }
code, .mono { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code { background: var(--code); border-radius: 4px; padding: 1px 5px; white-space: nowrap; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 24px 0 0; }
.figures div { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.figures dt { color: var(--soft); font-size: 13px; }
.figures dd { margin: 2px 0 0; font-size: 20px; font-weight: 600; font-variant-numeric: tabular-nums; }
.figures small { display: block; color: var(--soft); font-size: 12px; font-weight: 400; }
.advice { border-left: 3px solid var(--compute); padding: 2px 0 2px 14px; margin: 24px 0 0; max-width: 84ch; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--panel); }
.scroll.low { max-height: 460px; overflow-y: auto; }
.scroll.low th { position: sticky; top: 0; background: var(--panel); box-shadow: 0 1px var(--line); }
.scroll:focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 8px 12px; border-bottom: 1px solid var(--line); }
tbody tr:last-child td { border-bottom: 0; }
th { color: var(--soft); font-weight: 550; font-size: 13px; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.line { white-space: nowrap; color: var(--soft); }
td.why { min-width: 340px; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th button::after { content: " \\2195"; opacity: 0.45; }
th[aria-sort="ascending"] button::after { content: " \\2191"; opacity: 1; }
th[aria-sort="descending"] button::after { content: " \\2193"; opacity: 1; }
th button:focus-visible, summary:focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; }
.chart { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px 10px; }
.chart svg { display: block; width: 100%; }
.chart .lane { color: var(--soft); font-size: 12px; margin: 6px 0 3px; }
.chart .lane:first-child { margin-top: 0; }
.axis { display: flex; justify-content: space-between; color: var(--soft); font-size: 12px; padding-top: 6px; }
.compute { fill: var(--compute); } .idle { fill: var(--idle); } .talk { fill: var(--talk); }
.held { fill: var(--held); opacity: 0.55; }
.track { fill: var(--code); } .peak { stroke: var(--mark); stroke-width: 1.5; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: 12px; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.card h3 { font-size: 14px; font-weight: 600; margin: 0 0 2px; }
.card p { font-size: 13px; margin: 0 0 4px; }
.card code { white-space: normal; }
.pins code { font-size: 12px; }
.card svg, .mesh svg { display: block; max-width: 100%; height: auto; margin-top: 8px; }
.picture rect { stroke-width: 1; }
.picture text { fill: var(--ink); font: 10px system-ui, sans-serif; text-anchor: middle; dominant-baseline: central; }
.picture text.name { fill: var(--soft); }
details > summary { cursor: pointer; color: var(--soft); margin: 0 0 10px; }
.top { display: flex; flex-wrap: wrap; gap: 24px; justify-content: space-between; align-items: flex-start; }
.top > div:first-child { flex: 1 1 320px; }
@media (max-width: 560px) {
  main { padding: 24px 14px 48px; }
  h1 { font-size: 22px; }
  .figures { grid-template-columns: repeat(2, 1fr); gap: 8px; }
  .figures dd { font-size: 17px; }
  th, td { padding: 7px 9px; }
  td.why { min-width: 560px; }
}
@media print { .scroll, .scroll.low { overflow: visible; max-height: none; } }
"""
HUES = (205, 28, 135, 270, 350, 175, 50, 315)  # of the devices
STYLE += "".join(
    f".d{index} {{ fill: hsl({hue} var(--tint)); stroke: hsl({hue} var(--edge)); }}\n" for index, hue in enumerate(HUES)
)

# Notebooks have themes of their own, light and dark, that a style sheet cannot read. So text has the notebook's color,
# and the colors of devices let its background through.
PICTURE_STYLE = """
.shardwise-picture svg { display: block; max-width: 100%; height: auto; margin: 4px 0; }
.shardwise-picture rect { stroke-width: 1; }
.shardwise-picture rect.plain { fill: none; stroke: currentColor; stroke-opacity: 0.4; }
.shardwise-picture text {
  fill: currentColor; font: 10px system-ui, sans-serif; text-anchor: middle; dominant-baseline: central;
}
.shardwise-picture text.name { opacity: 0.75; }
.shardwise-picture small { opacity: 0.75; }
"""
PICTURE_STYLE += "".join(
    f".shardwise-picture .d{index} {{ fill: hsl({hue} 60% 50% / 0.3); stroke: hsl({hue} 45% 50%); }}\n"
    for index, hue in enumerate(HUES)
)

SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const number = head.classList.contains("number");
    const rising = head.getAttribute("aria-sort") === "descending" || (!number && !head.hasAttribute("aria-sort"));
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => (rising ? 1 : -1) *
      (number ? Number(value(a)) - Number(value(b)) : value(a).localeCompare(value(b))));
    table.tBodies[0].append(...rows);
  }));
}
"""
