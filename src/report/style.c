/* style.c - what all pages begin and end with: the style sheet, and whose they are. A page is one file, without scripts, and
 * takes nothing from the network. */
#include "src/report/report.h"

/* Colours that are distinct for all viewers: Okabe and Ito, "Color Universal Design". */
static const char style[] =
  ":root{--bg:#fff;--fg:#1b1f24;--dim:#667080;--rule:#dfe3e8;--lane:#eef0f3;--a:#0072b2;--b:#d55e00;"
  "--f:#3b8fd0;--bw:#e69f00;--w:#2fae80;--u:#8a6fc0;--pp:#b3358a;--dp:#0a8f6c;--tp:#d55e00;--world:#9aa3ad;"
  "--copy:#56b4e9;--ckpt:#5d6670}\n"
  "@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e7eb;--dim:#98a2ae;--rule:#30363d;"
  "--lane:#22272e;--a:#58b0ea;--b:#f0883e;--f:#4a9fe0;--bw:#e8ab2c;--w:#35b98a;--u:#a48bdc;--pp:#e070b8;"
  "--dp:#2fc79c;--tp:#f0883e;--world:#77818c;--copy:#7cc7f0;--ckpt:#aab3bd}}\n"
  "body{background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif;max-width:1120px;"
  "margin:1.5rem auto;padding:0 1rem}\n"
  "h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:1.8rem 0 .5rem}\n"
  ".lead{font-size:1.1rem;margin:.5rem 0 1rem}.note,.dim{color:var(--dim)}.note{font-size:.87rem}\n"
  "dl{display:grid;grid-template-columns:max-content 1fr max-content 1fr;gap:.15rem .9rem;margin:0}\n"
  "dt{color:var(--dim)}dd{margin:0}@media(max-width:760px){dl{grid-template-columns:max-content 1fr}}\n"
  ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(340px,1fr));gap:1rem}\n"
  "figure{margin:0}figcaption{font-weight:600}figcaption .key{margin:0 0 0 .6rem}"
  ".key{font-weight:400;color:var(--dim);margin-right:.8rem;"
  "white-space:nowrap}.key b{color:var(--fg)}.key i{display:inline-block;width:.75em;height:.75em;"
  "border-radius:2px;margin-right:.3em}\n"
  "svg{width:100%;height:auto;display:block}text{fill:var(--fg);font-size:12px}.tick{fill:var(--dim);"
  "font-size:11px}.rank{font-size:12px}.grid{stroke:var(--rule);stroke-width:1}.lane{fill:var(--lane)}"
  ".mark{stroke:var(--dim);stroke-width:1;stroke-dasharray:4 3}\n"
  ".mb{fill:#fff;font-size:11px;text-anchor:middle;pointer-events:none}.wide{overflow-x:auto}"
  ".wide svg{min-width:760px}\n"
  ".line{fill:none;stroke-width:1.6;stroke-linejoin:round}.l-a{stroke:var(--a)}.l-b{stroke:var(--b)}"
  ".dot.l-a{fill:var(--a)}.dot.l-b{fill:var(--b)}.key .l-a{background:var(--a)}.key .l-b{background:var(--b)}\n"
  ".run{stroke:var(--c)}.dot.run{fill:var(--c);stroke:none}.pale{stroke-width:.8;opacity:.5}"
  ".c0{--c:#0072b2}.c1{--c:#d55e00}.c2{--c:#009e73}.c3{--c:#e69f00}.c4{--c:#cc79a7}.c5{--c:#56b4e9}.c6{--c:#1b1f24}\n"
  "@media(prefers-color-scheme:dark){.c0{--c:#3f7fff}.c1{--c:#e8562a}.c2{--c:#1fa57c}.c3{--c:#f5c04a}.c4{--c:#c0409c}"
  ".c5{--c:#8ad8ff}.c6{--c:#f4f6f8}}\n"
  ".d1{stroke-dasharray:7 3}.d2{stroke-dasharray:2 2}.d3{stroke-dasharray:8 2 2 2}.d4{stroke-dasharray:14 4}"
  ".d5{stroke-dasharray:8 2 2 2 2 2}.swatch{display:inline-block;width:28px;height:8px;margin-right:.4em;"
  "vertical-align:middle}.wide .swatch{min-width:0}\n"
  ".ev-f{fill:var(--f);background:var(--f)}.ev-b{fill:var(--bw);background:var(--bw)}"
  ".ev-w{fill:var(--w);background:var(--w)}.ev-u{fill:var(--u);background:var(--u)}"
  ".ev-pp{fill:var(--pp);background:var(--pp)}.ev-dp{fill:var(--dp);background:var(--dp)}"
  ".ev-tp{fill:var(--tp);background:var(--tp)}.ev-world{fill:var(--world);background:var(--world)}"
  ".ev-copy{fill:var(--copy);background:var(--copy)}.ev-ckpt{fill:var(--ckpt);background:var(--ckpt)}"
  ".ev-none{background:var(--lane);outline:1px solid var(--rule)}\n"
  "table{border-collapse:collapse;width:100%}th,td{text-align:right;padding:.15rem .6rem;"
  "border-bottom:1px solid var(--rule);font-variant-numeric:tabular-nums}th{color:var(--dim);font-weight:400}"
  "th:first-child,td:first-child{text-align:left;padding-left:0;white-space:nowrap}\n"
  ".bar{display:flex;height:1.05em;background:var(--lane)}.bar i{display:block;height:100%}\n"
  "td.fill{width:45%}.m0{background:var(--f)}.m1{background:var(--bw)}.m2{background:var(--u)}"
  ".m3{background:var(--w)}.m4{background:var(--b)}.m5{background:var(--world)}\n"
  "details{margin-top:1.8rem}pre{overflow-x:auto;font-size:.85rem}\n";

void tc_page_begin(FILE *f, const char *title)
{
  fprintf(f, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
          "<meta name=\"color-scheme\" content=\"light dark\">\n<title>tercio: ");
  tc_html(f, title);
  fprintf(f, "</title>\n<style>\n%s</style></head><body>\n<h1>", style);
  tc_html(f, title);
  fprintf(f, "</h1>\n");
}

void tc_page_end(FILE *f, const char *version)
{
  fprintf(f, "<p class=\"note\">Made by tercio report");
  if (version) fprintf(f, "; the run used tercio ");
  tc_html(f, version ? version : "");
  fprintf(f, ".</p>\n</body></html>\n");
}
