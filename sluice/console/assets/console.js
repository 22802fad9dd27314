// What the pages do: fetch figures as JSON, draw them, follow new commits. Values are only ever set as text.

const at = (id) => document.getElementById(id);
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Two digits after the point, or three that count: a rate of 0.0013 is not 0.
const precise = { maximumSignificantDigits: 3, roundingPriority: "morePrecision" };
const numberFormat = new Intl.NumberFormat("en", { maximumFractionDigits: 2, ...precise });
const compactFormat = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1, ...precise });
const charts = new Map();
// A day says its month, too: nothing else on the axis may.
const timeLabels = { year: "{yyyy}", month: "{MMM}", day: "{MMM} {d}", hour: "{HH}:{mm}", minute: "{HH}:{mm}", second: "{HH}:{mm}:{ss}", millisecond: "{HH}:{mm}:{ss}.{SSS}", none: "{yyyy}-{MM}-{dd} {HH}:{mm}" };

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

async function fetched(url, options) {
  const answer = await fetch(url, options);
  let value;
  try { value = await answer.json(); } catch { value = { error: `The console did not answer (${answer.status}).` }; }
  if (!answer.ok) throw new Error(value.error ?? `The console did not answer (${answer.status}).`);
  return value;
}

const asked = new Map();

// Of several questions for one place on the page, the last one is answered; null for the others, whose answers may come later.
async function answered(place, url, options) {
  const question = asked.set(place, {}).get(place);
  try {
    const value = await fetched(url, options);
    return asked.get(place) === question ? value : null;
  } catch (error) {
    if (asked.get(place) === question) throw error;
    return null;
  }
}

function timeText(value) {
  return new Date(value).toISOString().replace("T", " ").replace(/(:00)?\.000Z$/, "").replace(/\.\d+Z$/, "");
}

// A number; of a decimal with `places`, such as an amount of money, two of them or as many as it has are always shown.
function plainText(value, places) {
  if (places == null) return numberFormat.format(value);
  return new Intl.NumberFormat("en", { minimumFractionDigits: Math.min(places, 2), maximumFractionDigits: places }).format(value);
}

function numberText(value, unit, places) {
  if (value == null) return "no value";
  return unit ? `${plainText(value, places)} ${unit}` : plainText(value, places);
}

// A day has no hour.
function pointText(time, figure) {
  return figure.is_daily ? new Date(time).toISOString().slice(0, 10) : timeText(time);
}

// Charts

function draw(place, option, onClick) {
  let chart = charts.get(place);
  if (!chart) {
    place.replaceChildren();
    chart = window.echarts.init(place, null, { renderer: "canvas" });
    charts.set(place, chart);
    new ResizeObserver(() => chart.resize()).observe(place);
  }
  chart.off("click");
  if (onClick) chart.on("click", onClick);
  const text = { color: style("--text"), fontFamily: getComputedStyle(document.body).fontFamily };
  chart.setOption({ useUTC: true, textStyle: text, animation: false, aria: { enabled: true }, ...option }, { notMerge: true });
}

function undraw(place, message) {
  charts.get(place)?.dispose();
  charts.delete(place);
  place.replaceChildren(element("p", { class: "quiet" }, message));
}

const palette = ["#2f7fb8", "#d97706", "#2a9d6f", "#b4478c", "#6d6ad0", "#a0522d", "#3aa6a6", "#c2493d", "#7c8a2e", "#5a7d9a", "#93639b", "#c98b2b"];

function frame(figure) {
  const line = style("--line"), quiet = style("--quiet");
  const axis = { axisLine: { lineStyle: { color: line } }, axisLabel: { color: quiet, hideOverlap: true }, splitLine: { lineStyle: { color: line } }, nameTextStyle: { color: quiet } };
  const name = figure.unit ? `${figure.label} (${figure.unit})` : figure.label;
  return {
    axis,
    value: { ...axis, type: "value", minInterval: figure.places === 0 ? 1 : 0, name: figure.difference ? `Change in ${name}` : name, nameLocation: "end", nameTextStyle: { color: quiet, align: "left" }, axisLabel: { color: quiet, formatter: (value) => compactFormat.format(value) } },
    tooltip: { renderMode: "richText", confine: true, backgroundColor: style("--raised"), borderColor: line, textStyle: { color: style("--text") } },
    grid: { left: 8, right: 16, top: 40, bottom: 8, containLabel: true },
    color: palette,
  };
}

function seriesOption(figure) {
  const parts = frame(figure);
  const isMany = figure.series.some((line) => line.points.length > 400);
  // The newest three hundred points; the slider below has all.
  const start = 100 - 30_000 / Math.max(...figure.series.map((line) => line.points.length), 300);
  const last = Math.max(...figure.series.flatMap((line) => line.points.map((point) => point[0])));
  const series = figure.series.map((line) => ({
    name: line.name, type: "line", showSymbol: line.points.length < 80, symbolSize: 5, connectNulls: false, lineStyle: { width: 1.5 },
    // Without lines between them, points that have none beside them would not be seen.
    data: line.points.map(([time, value], index) => {
      const alone = value != null && line.points[index - 1]?.[1] == null && line.points[index + 1]?.[1] == null;
      return alone ? { value: [time, value], symbol: "circle", symbolSize: 4 } : [time, value];
    }),
  }));
  if (figure.open_from != null && series.length) {
    const open = { color: style("--warn"), position: "insideTopRight" };
    series[0].markArea = { silent: true, itemStyle: { color: style("--warn"), opacity: 0.12 }, label: open, data: [[{ name: "still open", xAxis: figure.open_from }, { xAxis: Math.max(figure.open_until, last) }]] };
  }
  for (const [line, time, value, times] of figure.revised) {
    series[line].markPoint ??= { symbol: "diamond", symbolSize: 9, itemStyle: { color: style("--bad") }, label: { show: false }, data: [] };
    if (value != null) series[line].markPoint.data.push({ coord: [time, value], name: `revised ${times}×` });
  }
  const isNamed = series.length > 1 || (series.length && series[0].name !== "all");
  return {
    ...parts, series,
    legend: { show: isNamed, type: "scroll", formatter: (name) => name.length > 40 ? `${name.slice(0, 39)}…` : name, top: 0, left: 0, icon: "roundRect", itemWidth: 14, itemHeight: 4, textStyle: { color: style("--text") } },
    tooltip: { ...parts.tooltip, trigger: "item", formatter: (item) => `${item.seriesName}\n${pointText(item.data.coord?.[0] ?? (item.data.value ?? item.data)[0], figure)}\n${numberText(item.data.coord?.[1] ?? (item.data.value ?? item.data)[1], figure.unit, figure.places)}${item.componentType === "markPoint" ? `\n${item.name}` : ""}` },
    xAxis: { ...parts.axis, axisLabel: { ...parts.axis.axisLabel, formatter: timeLabels }, type: "time", name: "", minInterval: figure.is_daily ? 86_400_000 : null, splitLine: { show: false }, max: figure.open_from == null ? null : Math.max(figure.open_until, last) },
    yAxis: parts.value,
    grid: { ...parts.grid, top: isNamed ? 58 : 36, right: 26, bottom: isMany ? 44 : 8 },
    dataZoom: isMany ? [{ type: "inside", filterMode: "none", start }, { type: "slider", height: 22, bottom: 6, filterMode: "none", brushSelect: false, start }] : [],
  };
}

function barOption(figure) {
  const parts = frame(figure);
  const isLong = figure.categories.length > 12;
  return {
    ...parts, xAxis: { ...parts.value, nameLocation: "middle", nameGap: 28, nameTextStyle: { color: style("--quiet") } },
    yAxis: { ...parts.axis, type: "category", data: figure.categories, inverse: true, axisLabel: { color: style("--quiet"), width: 160, overflow: "truncate" } },
    series: [{ type: "bar", data: figure.values, barMaxWidth: 26, label: isLong ? { show: false } : { show: true, position: "right", color: style("--text"), formatter: (item) => numberText(item.value, figure.unit, figure.places) } }],
    tooltip: { ...parts.tooltip, trigger: "item", formatter: (item) => `${item.name}\n${numberText(item.value, figure.unit, figure.places)}` },
    grid: { ...parts.grid, top: 8, right: 70, bottom: 30 },
  };
}

function heatOption(figure, isNarrow) {
  const parts = frame(figure);
  const values = figure.cells.map((cell) => cell[2]).filter((value) => value != null);
  const most = Math.max(...values.map(Math.abs), 1e-9);
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const colours = isDark ? ["#1a2a38", "#2f7fb8", "#bfe3ff"] : ["#eef6fb", "#6aaed6", "#08519c"];
  const diverging = ["#b3261e", style("--ground"), "#0b5c8a"];
  return {
    ...parts,
    xAxis: { ...parts.axis, type: "category", data: figure.columns, name: figure.x, nameLocation: "middle", nameGap: isNarrow ? 52 : 38, axisLabel: { color: style("--quiet"), interval: figure.columns.length > 12 ? "auto" : 0, width: isNarrow ? 56 : 100, lineHeight: 14, overflow: "break" } },
    yAxis: { ...parts.axis, type: "category", data: figure.lines, name: figure.y, axisLabel: { ...parts.axis.axisLabel, width: 180, overflow: "truncate" }, nameTextStyle: { color: style("--quiet"), align: "left" } },
    visualMap: { min: figure.difference ? -most : Math.min(0, ...values), max: most, calculable: false, orient: "horizontal", right: 0, top: 0, itemHeight: 90, text: [`${figure.label}${figure.unit ? ` (${figure.unit})` : ""}  ${compactFormat.format(most)}`, ""], textStyle: { color: style("--quiet") }, inRange: { color: figure.difference ? diverging : colours } },
    series: [{ type: "heatmap", data: figure.cells, label: { show: figure.cells.length <= 80, formatter: (item) => item.value[2] == null ? "–" : figure.places ? plainText(item.value[2], figure.places) : compactFormat.format(item.value[2]) }, itemStyle: { borderColor: style("--ground"), borderWidth: 1 } }],
    tooltip: { ...parts.tooltip, formatter: (item) => `${figure.columns[item.value[0]]}, ${figure.lines[item.value[1]]}\n${numberText(item.value[2], figure.unit, figure.places)}` },
    grid: { ...parts.grid, top: 66, bottom: isNarrow ? 40 : 26 },
  };
}

function drawFigure(place, figure, onKey) {
  if (figure.is_empty) return undraw(place, figure.difference ? "Nothing changed between these two times." : "There is nothing to draw: no rows match.");
  const option = { series: seriesOption, bars: barOption, "heat map": heatOption }[figure.kind](figure, place.clientWidth < 600);
  draw(place, option, onKey && ((item) => {
    if (figure.kind !== "series") return onKey(figure.groups[item.dataIndex]);
    const time = item.data.coord?.[0] ?? (item.data.value ?? item.data)[0];
    onKey({ ...figure.series[item.seriesIndex].group, [figure.keys[0]]: new Date(time).toISOString().replace("T", " ").replace("Z", "").replace(/\.000$/, "") });
  }));
}

// Tables of rows

function cell(value, isNumber, places) {
  const made = element("td", { class: isNumber ? "number" : value?.length < 30 ? "short" : "" });
  if (value == null) made.append(element("span", { class: "null" }, "null"));
  else if (places != null) made.append(plainText(value, places));
  else if (isNumber && Math.abs(Number(value)) < 2 ** 53 && value !== "nan") made.append(Number.isInteger(Number(value)) ? Number(value).toLocaleString("en") : numberFormat.format(Number(value)));
  else made.append(value);
  if (isNumber && value != null) made.title = value;
  return made;
}

function fill(table, columns, rows, onRow) {
  const head = element("thead", {}, element("tr", {}, ...columns.map((each) => element("th", { class: each.is_number ? "number" : "", title: each.type }, each.name))));
  const body = element("tbody", {}, ...rows.map((row) => {
    const line = element("tr", {}, ...columns.map((each, index) => cell(row[index], each.is_number, each.places)));
    if (onRow) {
      line.tabIndex = 0;
      line.addEventListener("click", () => onRow(row, line));
      line.addEventListener("keydown", (event) => { if (event.key === "Enter") onRow(row, line); });
    }
    return line;
  }));
  if (!rows.length) body.append(element("tr", {}, element("td", { colspan: columns.length || 1, class: "quiet" }, "No rows.")));
  table.replaceChildren(head, body);
}

// The stops of a slider are commits; the last one is now.
function timeAt(slider, times) {
  const index = Number(slider.value);
  return index >= times.length - 1 || times.length < 2 ? null : times[index].at;
}

// The empty text, and a text that says null, would look like nothing and like null.
const labelText = (value) => value == null ? "null" : ["", "null"].includes(value) ? `"${value}"` : value;

const timeElement = (text) => element("time", { datetime: text }, timeText(text));

// One table: its chart, its rows, its past

function tablePage() {
  const rows = at("rows"), chart = at("chart"), pickers = at("pickers"), known = at("known");
  const times = JSON.parse(known.dataset.times), slider = at("known-at"), onlyChanges = at("difference");
  const facts = [...document.querySelectorAll("[data-fact]")];
  let offset = 0;

  const time = () => timeAt(slider, times);

  function parameters(more = {}) {
    const found = new URLSearchParams(more);
    if (time() && !found.has("known_at") && !onlyChanges?.checked) found.set("known_at", time());
    return found;
  }

  // The first choice of a group is all of it; the empty text is a value as others are, and null is no text.
  function choose(wanted) {
    for (const picker of pickers?.elements ?? []) {
      if (picker.name === "measure" || picker.selectedIndex < 1) continue;
      if ("null" in picker.selectedOptions[0].dataset) wanted.append("null", picker.name);
      else wanted.set(picker.name, picker.value);
    }
    return wanted;
  }

  async function showChart() {
    if (!chart) return;
    const wanted = parameters();
    wanted.set("measure", pickers.elements.measure.value);
    choose(wanted);
    if (onlyChanges.checked && time()) wanted.set("minus", time());
    try {
      const figure = await answered(chart, `${chart.dataset.source}?${wanted}`);
      if (!figure) return;
      drawFigure(chart, figure, (key) => why(key));
      const notes = [...figure.notes];
      if (figure.difference) notes.unshift("Only what changed since then, by how much.");
      at("chart-notes").textContent = notes.join(" ");
      chart.dataset.version = figure.version ?? "";
    } catch (error) { undraw(chart, error.message); }
  }

  async function showRows() {
    try {
      const found = await answered(rows, `${rows.dataset.source}?${choose(parameters({ offset }))}`);
      if (!found) return;
      const names = found.columns.map((each) => each.name);
      const explain = (row, line) => {
        rows.querySelector(".chosen")?.classList.remove("chosen");
        line.classList.add("chosen");
        why(Object.fromEntries(found.grain.map((name) => [name, row[names.indexOf(name)]])));
      };
      fill(rows, found.columns, found.rows, "explained" in rows.dataset && found.grain.every((name) => names.includes(name)) ? explain : null);
      at("newer").hidden = offset === 0;
      at("older").hidden = !found.has_more;
    } catch (error) { rows.replaceChildren(element("caption", { class: "alert" }, error.message)); }
  }

  async function showFacts() {
    try {
      const found = await answered(facts, `/api/tables/${encodeURIComponent(rows.dataset.table)}/state?${parameters()}`);
      if (!found) return;
      const checks = found.passed + found.broken ? `${found.passed} passed, ${found.broken} broken` : "none made";
      const texts = { rows: found.rows?.toLocaleString("en"), version: found.version, updated_at: found.updated_at && timeElement(found.updated_at), watermark: found.watermark && timeElement(found.watermark), checks };
      for (const fact of facts) fact.replaceChildren(texts[fact.dataset.fact] ?? "–");
      showTimes();
    } catch { for (const fact of facts) fact.replaceChildren("–"); }
  }

  async function why(key) {
    const place = at("why"), query = new URLSearchParams({ key: JSON.stringify(key) });
    const named = Object.entries(key).map(([name, value]) => `${name} = ${labelText(value)}`).join(", ");
    const list = element("ol");
    const find = element("button", { type: "button", onclick: () => origins(find, list, query) }, "Find the records behind it");
    place.replaceChildren(element("h2", {}, `Why: ${named}`), list, find, element("span", { class: "quiet" }, " Reads what each commit was made from; the first time, Spark starts for it."));
    place.hidden = false;
    place.scrollIntoView({ block: "nearest" });
    try {
      const found = await fetched(`/api/tables/${encodeURIComponent(rows.dataset.table)}/why?${query}`);
      let before = {};
      for (const value of found.values) {
        const line = element("li", { "data-version": value.version }, element("strong", {}, timeText(value.at)), ` version ${value.version}, ${value.cause}`);
        const shown = element("div", { class: "values" });
        if (!value.row) shown.append("gone");
        for (const [name, now] of Object.entries(value.row ?? {})) {
          if (name in key || name.startsWith("_") || name === "window_end") continue;
          const text = name in before && before[name] !== now ? `${before[name] ?? "null"} → ${now ?? "null"}` : now ?? "null";
          shown.append(`${name} `, element(name in before && before[name] !== now ? "b" : "span", {}, text), "  ");
        }
        before = value.row ?? {};
        line.append(shown);
        list.prepend(line);
      }
      if (!found.values.length) { list.append(element("li", {}, "There never was such a row.")); find.hidden = true; }
    } catch (error) { list.append(element("li", {}, error.message)); find.hidden = true; }
  }

  async function origins(button, list, query) {
    button.disabled = true;
    button.textContent = "Looking …";
    try {
      const found = await fetched(`/api/tables/${encodeURIComponent(rows.dataset.table)}/records?${query}`);
      for (const value of found.values) {
        const line = list.querySelector(`[data-version="${Number(value.version)}"]`);
        for (const origin of value.origins) {
          const more = origin.records_count - origin.records.length;
          const by = origin.records.length ? `${origin.records.join(", ")}${more > 0 ? ` and ${more.toLocaleString("en")} more` : ""}` : [origin.by, ...Object.entries(origin.detail).map((each) => each.join(" "))].join(", ");
          line?.append(element("div", { class: "quiet origin" }, `because of ${by}, by ${[...origin.path].reverse().join(" → ")}`));
        }
      }
      button.hidden = true;
      if (button.nextSibling) button.nextSibling.hidden = true;
    } catch (error) { button.textContent = error.message; }
  }

  function showTime() {
    const index = Number(slider.value), commit = times[index];
    const isPast = time() && !onlyChanges?.checked;
    const text = time() ? `${timeText(commit.at)} UTC, version ${commit.version}` : "now";
    at("known-text").textContent = time() && !isPast ? `${text}; the rows below are those of now` : text;
    const query = at("query"), ask = new URL(query.href);
    isPast ? ask.searchParams.set("known_at", time().slice(0, 23)) : ask.searchParams.delete("known_at");
    query.href = ask;
    for (const form of ["csv", "parquet"]) {
      const link = at(form), url = new URL(link.href);
      url.search = isPast ? new URLSearchParams({ known_at: time() }) : "";
      link.href = url;
    }
  }

  const refresh = () => { showTime(); showChart(); showRows(); };
  const moved = () => { offset = 0; refresh(); showFacts(); };
  slider.addEventListener("input", showTime);
  slider.addEventListener("change", moved);
  onlyChanges?.addEventListener("change", moved);
  pickers?.addEventListener("change", () => { offset = 0; showChart(); showRows(); });
  pickers?.addEventListener("submit", (event) => event.preventDefault());
  at("older").addEventListener("click", () => { offset += 100; showRows(); });
  at("newer").addEventListener("click", () => { offset = Math.max(0, offset - 100); showRows(); });
  refresh();
  return (tables) => { if (tables.includes(rows.dataset.table) && !time()) { showChart(); showRows(); showFacts(); } };
}

// The flow of records

async function flowPage() {
  const graph = JSON.parse(at("lineage").dataset.graph);
  new ResizeObserver(() => drawLineage(at("lineage"), graph)).observe(at("lineage"));
  async function show() {
    try {
      const flow = await answered(at("sankey"), "/api/flow");
      if (!flow) return;
      const findings = [
        ...flow.fates.filter((each) => !each.balanced).map((each) => `${each.dataset}: of the records of ${each.topic}, ${each.missing} are missing and ${each.doubled} doubled, and ${each.unknown} never landed`),
        ...flow.broken.map((each) => `${each.dataset}: ${each.law}: ${each.unknown || each.broken}`),
        ...flow.stopped.map((each) => `${each.dataset} has been blocked since ${timeText(each.since)}: ${each.reason}`),
      ];
      at("findings").replaceChildren(...findings.map((text) => element("li", {}, text)));
      at("balance").textContent = flow.balanced ? `Everything adds up: ${flow.fates.length} consumers of topics and ${flow.laws} integrity checks.` : `${findings.length} ${findings.length === 1 ? "finding" : "findings"}, as sluice audit has them:`;
      at("balance").className = flow.balanced ? "quiet" : "alert";
      drawSankey(at("sankey"), flow);
      const names = ["dataset", "topic", "landed", "accepted", "duplicate", "conflicts", "quarantined", "late", "erased", "missing", "doubled"];
      fill(at("fates"), names.map((name, index) => ({ name, type: "", is_number: index > 1 })), flow.fates.map((each) => names.map((name) => each[name])));
      const columns = ["dataset", "fate", "reason", "records", "first_at", "last_at"];
      fill(at("quarantined"), columns.map((name) => ({ name, type: "", is_number: name === "records" })), flow.quarantined.map((each) => columns.map((name) => name.endsWith("_at") ? timeText(each[name]) : each[name])), (row) => quarantined(flow.quarantined.find((each) => each.dataset === row[0] && each.reason === row[2])));
    } catch (error) { at("balance").textContent = error.message; }
  }
  show();
  return show;
}

async function quarantined({ dataset, reason, can_be_released: canBeReleased }) {
  const found = await answered(at("records"), `/api/quarantine/${encodeURIComponent(dataset)}?${new URLSearchParams({ reason })}`);
  if (!found) return;
  const table = element("table", { class: "rows" });
  table.append(element("thead", {}, element("tr", {}, element("th", {}, "record"), element("th", {}, "arrived"), element("th", {}, "value"))));
  table.append(element("tbody", {}, ...found.map((each) => element("tr", {}, element("td", {}, each.position), element("td", {}, timeText(each.timestamp)), element("td", {}, element("pre", { class: "value" }, each.value ?? "null"))))));
  at("records").replaceChildren(element("h2", {}, `${dataset}: ${reason}`), element("p", { class: "quiet" }, "The oldest 100. ", ...(canBeReleased ? ["Let them through with: ", element("code", {}, `sluice quarantine release ${dataset} --reason ${reason} --because "…"`)] : ["They cannot be used as they are: append them corrected, or change the declaration."])), table);
}

function drawSankey(place, flow) {
  const nodes = new Map(), links = [];
  const link = (source, target, value) => {
    if (!value) return;
    for (const name of [source, target]) nodes.set(name, { name });
    links.push({ source, target, value });
  };
  const reasons = new Map();
  for (const each of flow.quarantined) reasons.set(each.dataset, [...(reasons.get(each.dataset) ?? []), each]);
  for (const each of flow.fates) {
    const own = `${each.dataset} `;
    link(each.topic, own, each.landed);
    for (const fate of ["accepted", "duplicate", "erased", "missing"]) link(own, fate, each[fate]);
    const quarantined = reasons.get(each.dataset) ?? [];
    for (const one of quarantined) link(own, one.fate === "late" ? "late" : `quarantined: ${one.reason}`, one.records);
  }
  if (!links.length) return undraw(place, "Nothing has landed yet.");
  const isNarrow = place.clientWidth < 600;
  draw(place, {
    color: palette, tooltip: { renderMode: "richText", confine: true, formatter: (item) => item.dataType === "edge" ? `${item.data.source.trim()} → ${item.data.target.trim()}\n${numberText(item.data.value, "records")}` : `${item.name.trim()}\n${numberText(item.value, "records")}` },
    series: [{ type: "sankey", data: [...nodes.values()], links, nodeAlign: "justify", left: 4, right: isNarrow ? 130 : 220, top: 10, bottom: 10, nodeWidth: 10, nodeGap: 14, layoutIterations: 32, emphasis: { focus: "adjacency" }, lineStyle: { color: "source", opacity: 0.35 }, label: { color: style("--text"), fontSize: isNarrow ? 10 : 12, width: isNarrow ? 120 : 210, overflow: "truncate", formatter: (item) => `${item.name.trim()}  ${compactFormat.format(item.value)}` } }],
  });
}

const curveness = 0.12;

function drawLineage(place, graph) {
  if (!graph.nodes.length) return undraw(place, "Nothing is declared yet.");
  const depth = new Map();
  const depthOf = (name) => {
    if (!depth.has(name)) depth.set(name, Math.max(-1, ...graph.edges.filter((edge) => edge[1] === name).map((edge) => depthOf(edge[0]))) + 1);
    return depth.get(name);
  };
  graph.nodes.forEach(depthOf);
  const levels = Math.max(...depth.values()), counts = new Map();
  for (const name of graph.nodes) counts.set(depth.get(name), (counts.get(depth.get(name)) ?? 0) + 1);
  // Wide enough for the names; a narrow screen scrolls.
  place.style.minWidth = `${11 * (levels + 1)}rem`;
  const seen = new Map(), isNarrow = place.clientWidth < 600;
  // The arrows bulge by half their curveness, upwards too, and those of the first line would be cut off.
  const space = { left: 20, right: isNarrow ? 90 : 170, top: 20 + (curveness / 2) * place.clientWidth, bottom: 20 };
  const width = place.clientWidth - space.left - space.right, height = place.clientHeight - space.top - space.bottom;
  const colours = { bronze: palette[1], silver: palette[9], gold: palette[11] };
  const data = graph.nodes.map((name) => {
    const level = depth.get(name), index = seen.get(level) ?? 0;
    seen.set(level, index + 1);
    return { name, x: space.left + (level / Math.max(levels, 1)) * width, y: space.top + ((index + 0.5) / counts.get(level)) * height, itemStyle: { color: colours[name.split(".")[0]] } };
  });
  // As large as the nodes are apart, so that nothing is stretched; one line, or one node, gets a box of two.
  const [left, right] = [Math.min, Math.max].map((most) => most(...data.map((node) => node.x)));
  const [top, bottom] = [Math.min, Math.max].map((most) => most(...data.map((node) => node.y)));
  const flat = (least, most) => (most > least ? { at: least, size: most - least } : { at: least - 1, size: 2 });
  const across = flat(left, right), down = flat(top, bottom);
  draw(place, {
    tooltip: { show: false },
    series: [{ type: "graph", layout: "none", data, links: graph.edges.map(([source, target]) => ({ source, target })), left: across.at, width: across.size, top: down.at, height: down.size, symbolSize: 10, edgeSymbol: ["none", "arrow"], edgeSymbolSize: 7, lineStyle: { color: style("--quiet"), opacity: 0.6, curveness }, label: { show: true, position: "right", color: style("--text"), fontSize: isNarrow ? 9 : 12, backgroundColor: style("--ground"), padding: 1 }, emphasis: { focus: "adjacency" } }],
  }, (item) => { if (item.dataType === "node") location.assign(`/tables/${encodeURIComponent(item.name)}`); });
}

// SQL

function sqlPage() {
  const form = at("sql-form"), text = at("sql"), list = at("completions"), past = at("history");
  const tables = JSON.parse(form.dataset.tables);
  const words = [...new Set([...Object.keys(tables), ...Object.values(tables).flat(), "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "count(*)", "JOIN", "USING", "date_trunc"])];
  const earlier = () => JSON.parse(localStorage.getItem("sluice-sql") ?? "[]");
  const showHistory = () => past.replaceChildren(element("option", { value: "" }, "–"), ...earlier().map((sql) => element("option", { value: sql }, sql.length > 70 ? `${sql.slice(0, 70)}…` : sql)));

  async function run() {
    const known = at("sql-known-at").value;
    at("sql-status").textContent = "Running …";
    at("sql-status").className = "quiet";
    try {
      const began = performance.now();
      at("sql-notes").textContent = "";
      const found = await answered(form, "/api/sql", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ sql: text.value, known_at: known || null }) });
      if (!found) return;
      fill(at("answer"), found.columns, found.rows);
      at("sql-status").textContent = `${found.has_more ? "The first " : ""}${found.rows.length.toLocaleString("en")} rows, ${Math.round(performance.now() - began)} ms`;
      localStorage.setItem("sluice-sql", JSON.stringify([text.value, ...earlier().filter((sql) => sql !== text.value)].slice(0, 30)));
      showHistory();
      at("sql-chart").hidden = !found.charts.length || found.rows.length < 2;
      if (!at("sql-chart").hidden) {
        drawFigure(at("sql-chart"), found.charts[0]);
        at("sql-notes").textContent = found.charts[0].notes.join(" ");
      }
    } catch (error) {
      at("sql-status").textContent = error.message;
      at("sql-status").className = "alert";
      at("answer").replaceChildren();
      at("sql-chart").hidden = true;
    }
  }

  const word = () => text.value.slice(0, text.selectionStart).match(/[\w.]+$/)?.[0] ?? "";
  function complete() {
    const begun = word().toLowerCase();
    const found = begun ? words.filter((each) => each.toLowerCase().startsWith(begun) || each.toLowerCase().split(".")[1]?.startsWith(begun)).slice(0, 12) : Object.keys(tables);
    list.replaceChildren(...found.map((each, index) => element("li", { role: "option", "aria-selected": String(index === 0), onclick: () => insert(each) }, each)));
    list.hidden = !found.length;
  }
  function insert(found) {
    text.setRangeText(found, text.selectionStart - word().length, text.selectionStart, "end");
    list.hidden = true;
    text.focus();
  }
  text.addEventListener("keydown", (event) => {
    const chosen = list.querySelector("[aria-selected=true]");
    if (event.ctrlKey && event.key === "Enter") { event.preventDefault(); run(); }
    else if (event.ctrlKey && event.code === "Space") { event.preventDefault(); complete(); }
    else if (!list.hidden && event.key === "Escape") list.hidden = true;
    else if (!list.hidden && (event.key === "Enter" || event.key === "Tab")) { event.preventDefault(); insert(chosen.textContent); }
    else if (!list.hidden && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      const next = (event.key === "ArrowDown" ? chosen.nextElementSibling : chosen.previousElementSibling) ?? chosen;
      chosen.setAttribute("aria-selected", "false");
      next.setAttribute("aria-selected", "true");
      next.scrollIntoView({ block: "nearest" });
    }
  });
  text.addEventListener("input", () => { if (!list.hidden) complete(); });
  past.addEventListener("change", () => { if (past.value) text.value = past.value; });
  form.addEventListener("submit", (event) => { event.preventDefault(); run(); });
  showHistory();
  if (text.value.trim()) run();
}

// Dashboards

function dashboardPage() {
  const times = JSON.parse(at("known").dataset.times), slider = at("known-at");
  const time = () => timeAt(slider, times);
  const show = () => document.querySelectorAll("[data-panel]").forEach(async (place) => {
    try {
      const figure = await answered(place, time() ? `${place.dataset.panel}?${new URLSearchParams({ known_at: time() })}` : place.dataset.panel), note = place.nextElementSibling;
      if (!figure) return;
      drawFigure(place, figure);
      note.textContent = [note.dataset.note, ...figure.notes].filter(Boolean).join(" ");
    } catch (error) { undraw(place, error.message); }
  });
  slider.addEventListener("input", () => { at("known-text").textContent = time() ? `${timeText(time())} UTC` : "now"; });
  slider.addEventListener("change", show);
  show();
  return show;
}

// New commits, and the way that times are shown

function follow(changed) {
  const live = at("live"), source = new EventSource("/events");
  // The page may be older than the first event.
  let seen = JSON.parse(document.body.dataset.versions);
  source.addEventListener("open", () => live.classList.replace("off", "on") || live.classList.add("on"));
  source.addEventListener("error", () => live.classList.replace("on", "off") || live.classList.add("off"));
  source.addEventListener("versions", (event) => {
    const versions = JSON.parse(event.data);
    const moved = Object.keys({ ...seen, ...versions }).filter((table) => seen[table] !== versions[table]);
    seen = versions;
    if (moved.length) changed(moved);
  });
  addEventListener("pagehide", () => source.close());
}

function agoText(then) {
  const seconds = (Date.now() - Date.parse(then)) / 1000;
  const steps = [[60, "second", 1], [3600, "minute", 60], [86400, "hour", 3600], [Infinity, "day", 86400]];
  const [, unit, size] = steps.find(([most]) => Math.abs(seconds) < most);
  return new Intl.RelativeTimeFormat("en", { numeric: "auto" }).format(-Math.round(seconds / size), unit);
}

function showTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    time.title = `${time.dataset.text ??= time.textContent} UTC`;
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    time.textContent = seconds < 7 * 86400 ? agoText(time.dateTime) : `${time.dataset.text} UTC`;
  }
}

async function showRunning() {
  try { at("running").textContent = (await fetched("/api/running")).is_running ? "A run writes the tables now." : "No run is under way."; } catch { /* The sign of life says that the console is away. */ }
}

async function begin() {
  showTimes();
  setInterval(showTimes, 30_000);
  if (at("running")) setInterval(showRunning, 5_000);
  if (at("rows")) follow(tablePage());
  else if (at("sankey")) follow(await flowPage());
  else if (document.querySelector("[data-panel]")) follow(dashboardPage());
  else { if (at("sql-form")) sqlPage(); follow(() => { if (location.pathname === "/") location.reload(); }); }
}

begin();
