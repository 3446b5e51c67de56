"""How the page looks."""

STYLE = """
:root{--bg:#f6f7f9;--panel:#fff;--ink:#14202e;--soft:#5b6b7d;--line:#e3e8ee;--accent:#0b6e99;--good:#137a4b;
--amber:#8a5a00;--bad:#b3261e;--bandwidth:#0b84a5;--arithmetic:#8e4fb0;--interconnect:#d98c1f;--overhead:#c2504b;
--weights:#2f5d9b;--activations:#d9a521;--runtime:#9aa5b1;--kv:#2e9e6b;--free:#dfe4ea}
@media
(prefers-color-scheme:dark){:root{--bg:#0f151c;--panel:#18212b;--ink:#e6edf4;--soft:#93a3b5;--line:#2a3642;
--accent:#4fb3d9;--good:#4cc38a;--amber:#e3b341;--bad:#ff7b72;--free:#2a3642;--weights:#5a8fd6;--bandwidth:#35b0d3;
--arithmetic:#b983dd}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1240px;margin:0 auto;padding:36px 24px 48px}
h1{font-size:30px;line-height:1.2;margin:0 0 10px;letter-spacing:-.01em}
h2{font-size:16px;margin:0 0 14px}h3{font-size:13px;font-weight:600;color:var(--soft);margin:16px 0 6px}
.eyebrow{margin:0 0 4px;font-size:12px;letter-spacing:.1em;text-transform:uppercase;color:var(--accent);
font-weight:600}
.verdict{display:inline-block;margin:0 0 10px;padding:6px 14px;border-radius:8px;font-weight:600}
.verdict.good{color:var(--good);background:color-mix(in srgb,var(--good) 12%,transparent)}
.verdict.changed{color:var(--amber);background:color-mix(in srgb,var(--amber) 14%,transparent)}
.verdict.bad{color:var(--bad);background:color-mix(in srgb,var(--bad) 12%,transparent)}
.sub{color:var(--soft);margin:0 0 22px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(185px,1fr));gap:14px;margin-bottom:18px}
.card,.panel{background:var(--panel);border:1px solid var(--line);border-radius:12px}
.card{padding:14px 16px}.card .label{margin:0;color:var(--soft);font-size:12.5px}
.card .value{margin:2px 0 0;font-size:21px;font-weight:650;line-height:1.25;letter-spacing:-.01em}
.card .band-text{margin:2px 0 0;color:var(--soft);font-size:12.5px}
.panel{padding:18px 20px;margin-bottom:18px;overflow-x:auto}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:18px}.pair>*{min-width:0}
@media (max-width:900px){.pair{grid-template-columns:1fr}}
.small{color:var(--soft);font-size:12.5px;margin:12px 0 0}
dl{display:grid;grid-template-columns:minmax(130px,max-content) 1fr;gap:6px 18px;margin:0}
dt{color:var(--soft)}dd{margin:0}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;color:var(--soft);font-weight:500;padding:5px 8px;border-bottom:1px solid var(--line)}
td{padding:6px 8px;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th:not(:first-child){text-align:right}
.better{color:var(--good)}.worse{color:var(--bad)}small{color:var(--soft)}
.ranking tr.chosen td{background:color-mix(in srgb,var(--accent) 10%,transparent);font-weight:600}
.ranking tr.out td{color:var(--soft)}
.waterfall th{border:0;font-weight:400;width:130px;color:var(--ink)}.waterfall td{border:0;padding:3px 8px}
.waterfall .num{width:84px}.track span{display:block;height:14px;border-radius:3px;min-width:2px}
.bar{display:flex;height:34px;border-radius:8px;overflow:hidden}.bar span{display:block}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:6px 18px;padding:0;margin:12px 0 0;font-size:13px;
color:var(--soft)}
.legend b{color:var(--ink);font-weight:600}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
.weights{background:var(--weights)}.activations{background:var(--activations)}.runtime{background:var(--runtime)}
.kv{background:var(--kv)}.free{background:var(--free)}
.bandwidth{background:var(--bandwidth)}.arithmetic{background:var(--arithmetic)}
.interconnect{background:var(--interconnect)}.overhead{background:var(--overhead)}
svg{width:100%;height:auto;display:block;font:11.5px system-ui,sans-serif}
svg .grid{stroke:var(--line);stroke-width:1}svg text{fill:var(--soft)}svg .axis{font-size:12px}
svg .middle{text-anchor:middle}svg .end{text-anchor:end}svg .note{fill:var(--ink);font-size:11px}
svg polyline{fill:none;stroke-width:2.2}svg .roof{stroke:var(--ink)}
svg .reachable{stroke-dasharray:6 5;stroke-width:1.6;stroke:var(--soft)}
svg .ridge{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 4}
svg .note{paint-order:stroke;stroke:var(--panel);stroke-width:3px;stroke-linejoin:round}
svg .latency{stroke:var(--bandwidth)}svg .promise{stroke:var(--bad);stroke-dasharray:4 4;stroke-width:1.4}
svg .band{fill:var(--bandwidth);opacity:.13}
svg .decode{fill:var(--bandwidth)}svg .prefill{fill:var(--arithmetic)}svg .broken{fill:var(--bad)}
.text-last th:last-child,.text-last td:last-child{text-align:left}
@media (max-width:560px){main{padding:22px 14px 32px}dl{grid-template-columns:1fr;gap:1px}
dd{margin:0 0 9px}.panel{padding:15px 14px}.cards{grid-template-columns:1fr 1fr}.card .value{font-size:18px}
.waterfall th{width:96px;padding-left:0}.waterfall .num{width:70px;padding-right:0}
svg{font-size:15px}svg .note,svg .axis{font-size:15px}}
@media print{:root{--bg:#fff;--panel:#fff;--ink:#14202e;--soft:#4a5868;--line:#d5dbe2;--free:#dfe4ea;
--accent:#0b6e99;--good:#137a4b;--amber:#8a5a00;--bad:#b3261e}main{max-width:none;padding:0}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
.panel,.card,tr{break-inside:avoid}.panel{overflow:visible}}
footer{color:var(--soft);font-size:12.5px}footer ul{padding-left:18px}
"""
