"use strict";
// The numbers of charts, the choice of the task, the trust map and the sample browser. Nothing is fetched.

const make = (tag, fields = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};
const draw = (tag, fields, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(fields)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
const percent = (part, digits = 0) => `${(100 * part).toFixed(digits)} %`;

// --- the tip beside the pointer --------------------------------------------------------------------------------------
const tip = make("div", { class: "tip", hidden: "" });
document.body.append(tip);
const showTip = (event, ...lines) => {
  tip.replaceChildren(...lines.map((line) => make("div", {}, ...line)));
  tip.hidden = false;
  const left = Math.min(event.pageX + 14, scrollX + document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(scrollX + 4, left)}px`;
  tip.style.top = `${event.pageY + 16}px`;
};
const hideTip = () => { tip.hidden = true; };
const bold = (text) => make("b", {}, text);

const pointerPlace = (svg, event) => {
  const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
  return [(event.clientX - box.left) * view.width / box.width, (event.clientY - box.top) * view.height / box.height];
};

// --- charts ----------------------------------------------------------------------------------------------------------
const numbersTable = (data) => {
  const heads = data.scatter ? ["", "", data.x, "y"] : [data.x, ...data.series.map((one) => one.name)];
  const rows = new Map();
  if (data.scatter) {
    data.series.forEach((one) => one.points.forEach(([, , x, y, name]) => rows.set(rows.size, [one.name, name, x, y])));
  } else {
    data.series.forEach((one, column) => one.points.forEach(([, , x, y]) => {
      if (!rows.has(x)) rows.set(x, [x, ...data.series.map(() => "–")]);
      rows.get(x)[column + 1] = y;
    }));
  }
  const line = (tag, cells) => make("tr", {}, ...cells.map((cell) => make(tag, {}, cell)));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Numbers" }, make("table", {}, line("th", heads), ...[...rows.values()].map((row) => line("td", row))));
};

for (const figure of document.querySelectorAll("figure:has(> svg)")) {
  const svg = figure.querySelector("svg"), data = JSON.parse(figure.querySelector("script").textContent);
  const view = svg.viewBox.baseVal;
  const rule = draw("line", { class: "pointer", y1: 26, y2: view.height - 40, visibility: "hidden" });
  svg.append(rule);
  const all = data.series.flatMap((one) => one.points.map((point) => ({ one, point })));
  const name = (one) => bold(`${one.name} `);
  svg.addEventListener("pointermove", (event) => {
    const [x, y] = pointerPlace(svg, event);
    const distance = ({ point }) => Math.hypot(point[0] - x, data.scatter ? point[1] - y : 0);
    const nearest = all.reduce((a, b) => (distance(b) < distance(a) ? b : a));
    if (data.scatter) {
      const [, , alone, here, client] = nearest.point;
      showTip(event, [name(nearest.one), client ?? ""], [`${here}, ${data.x} ${alone}`]);
      return;
    }
    rule.setAttribute("x1", nearest.point[0]);
    rule.setAttribute("x2", nearest.point[0]);
    rule.setAttribute("visibility", "visible");
    const same = all.filter(({ point }) => Math.abs(point[0] - nearest.point[0]) < 2).sort((a, b) => a.point[1] - b.point[1]);
    showTip(event, [`${data.x} ${nearest.point[2]}`], ...same.map(({ one, point }) => [name(one), point[3]]));
  });
  svg.addEventListener("pointerleave", () => { hideTip(); rule.setAttribute("visibility", "hidden"); });
  const numbers = figure.querySelector(".numbers");
  numbers.addEventListener("toggle", () => {
    if (numbers.open && numbers.children.length === 1) numbers.append(numbersTable(data));
  });
}

// --- the task --------------------------------------------------------------------------------------------------------
const task = document.getElementById("task");
if (task) {
  const choose = () => {
    for (const node of document.querySelectorAll("[data-task]")) node.hidden = node.dataset.task !== task.value;
  };
  task.addEventListener("change", choose);
  choose();
}

// --- the trust map and the sample browser ----------------------------------------------------------------------------
const trustData = JSON.parse(document.getElementById("trust-data").textContent);
if (trustData) {
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const unpack = (run) => {
    if (run.ready) return run;
    const classes = (text) => (run.classes.length <= 255 ? bytes(text) : new Uint16Array(bytes(text).buffer));
    for (const key of ["trust", "shares", "chance", "truth"]) run[key] = bytes(run[key]);
    for (const key of ["votes", "top"]) run[key] = classes(run[key]);
    run.shown = trustData.samples[run.samples];
    run.ready = true;
    return run;
  };
  const selects = [...document.querySelectorAll(".trust-run")], sliders = [...document.querySelectorAll(".trust-round")];
  const state = { run: 0, round: 0, sort: "disputed", all: false };
  for (const select of selects) select.append(...trustData.runs.map((run, index) => make("option", { value: index }, run.name)));

  const trustOf = (run, client, group) => run.trust[(state.round * run.clients.length + client) * run.classes.length + group] / 255;

  const map = document.getElementById("map");
  const drawMap = (run) => {
    const clients = run.clients.length, classes = run.classes.length;
    const longest = Math.max(...run.classes.map((name) => name.length));
    const left = 76, top = classes > 40 ? 8 : longest > 3 ? Math.min(110, 12 + longest * 5.2) : 24;
    const room = Math.min(720, Math.max(340, map.clientWidth)); // so that letters stay as large on a phone
    const wide = Math.min(64, Math.max(3, (room - left - 4) / classes)), high = clients > 30 ? 11 : 20;
    const width = left + classes * wide + (longest > 3 ? 40 : 4), height = top + clients * high + 4;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Mean share of trust by client and class" });
    let most = 0;
    for (const value of run.trust) most = Math.max(most, value);
    most = Math.max(most, 1) / 255;
    if (classes <= 40) {
      run.classes.forEach((name, group) => {
        const x = left + (group + 0.5) * wide;
        const turned = longest > 3 ? { transform: `rotate(-38 ${x} ${top - 6})` } : { "text-anchor": "middle" };
        svg.append(draw("text", { x, y: top - 6, ...turned }, name.length > 20 ? `${name.slice(0, 19)}…` : name));
      });
    }
    svg.append(draw("text", { x: left - 8, y: top - 6, "text-anchor": "end" }, "class →"));
    const held = [];
    run.clients.forEach((client, row) => {
      const y = top + row * high;
      svg.append(draw("text", { x: left - 8, y: y + high / 2 + 4, "text-anchor": "end" }, `client ${client}`.slice(0, 12)));
      svg.append(draw("rect", { class: "floor", x: left, y: y + 1, width: classes * wide, height: high - 2 }));
      for (let group = 0; group < classes; group += 1) {
        const place = { x: left + group * wide + 1, y: y + 1, width: Math.max(wide - 2, 2), height: high - 2 };
        svg.append(draw("rect", { class: "cell", ...place, "fill-opacity": (trustOf(run, row, group) / most).toFixed(3) }));
        if (run.held[row].includes(group)) held.push(draw("rect", { class: "held", ...place }));
      }
    });
    svg.append(...held);
    svg.addEventListener("pointermove", (event) => {
      const [x, y] = pointerPlace(svg, event);
      const group = Math.floor((x - left) / wide), row = Math.floor((y - top) / high);
      if (group < 0 || row < 0 || group >= classes || row >= clients) { hideTip(); return; }
      const holds = run.held[row].map((index) => run.classes[index]).join(", ");
      showTip(event, [bold(`client ${run.clients[row]}`), " on ", bold(run.classes[group])], [`${percent(trustOf(run, row, group), 1)} of the trust`], [`holds ${holds}`]);
    });
    svg.addEventListener("pointerleave", hideTip);
    map.replaceChildren(svg);
    document.getElementById("most").textContent = percent(most);
  };

  const summarise = (run) => {
    let sum = 0, chance = 0, counted = 0;
    for (let group = 0; group < run.classes.length; group += 1) {
      const holders = run.clients.map((_, row) => row).filter((row) => run.held[row].includes(group));
      let own = 0, every = 0;
      run.clients.forEach((_, row) => { every += trustOf(run, row, group); });
      holders.forEach((row) => { own += trustOf(run, row, group); });
      if (every > 0) { sum += own / every; chance += holders.length / run.clients.length; counted += 1; }
    }
    const round = run.rounds[state.round];
    document.getElementById("trust-summary").textContent = counted
      ? `In round ${round}, ${percent(sum / counted)} of the trust goes to clients that hold the sample's class; trusting all alike would give them ${percent(chance / counted)}.`
      : "";
    const cut = run.of > run.clients.length ? ` ${run.clients.length} of ${run.of} clients are shown.` : "";
    document.getElementById("trust-note").textContent = (run.weighed
      ? "Shares are the weights of the rule itself, mean over up to 1,000 public samples of a class (its known one, else the teacher's)."
      : "This rule gives no weights to clients: a sample's trust is shared alike by those whose vote is the teacher's.") + cut;
  };

  const describeSample = (run, index) => {
    const clients = run.clients.length, samples = run.shown.length, best = run.top.length / (run.rounds.length * samples);
    const at = state.round * samples + index;
    const teacher = run.top[at * best];
    const votes = run.clients.map((client, row) => {
      const place = (state.round * clients + row) * samples + index;
      return { client, vote: run.votes[place], share: run.shares[place] / 255 };
    }).filter(({ vote }) => vote < run.classes.length);
    const others = votes.filter(({ vote }) => vote !== teacher).length;
    const truth = run.shown[index].truth;
    return {
      index, votes, teacher, truth, others, disputed: votes.length ? others / votes.length : 0,
      sure: run.chance[at * best] / 255, right: run.truth[at] / 255, wrong: truth < 0 ? -1 : 1 - run.truth[at] / 255,
    };
  };

  const card = (run, one) => {
    const sample = run.shown[one.index], name = (group) => run.classes[group];
    const mark = (group) => (one.truth < 0 ? "" : group === one.truth ? "good" : "bad");
    const look = sample.image ? make("img", { src: sample.image, alt: `public sample ${one.index + 1}` }) : make("blockquote", {}, sample.text || `public sample ${one.index + 1}`);
    const mostTrusted = [...one.votes].sort((a, b) => b.share - a.share).slice(0, 3);
    const voters = mostTrusted.map(({ client, vote, share }) => make("li", {},
      make("span", {}, `client ${client}`),
      make("span", { class: "bar" }, make("i", { style: `width:${(100 * share).toFixed(1)}%` })),
      make("span", {}, `${percent(share)} for `, make("b", { class: mark(vote) }, name(vote)))));
    const truth = one.truth < 0 ? make("p", { class: "quiet" }, "truth unknown") : make("p", {}, "truth ", bold(name(one.truth)));
    const node = make("li", { class: sample.image ? "card" : "card texts" }, look, make("div", {}, truth,
      make("p", {}, "teacher ", make("b", { class: mark(one.teacher) }, name(one.teacher)), `, probability ${percent(one.sure)}`),
      make("p", { class: "quiet" }, "shares of trust and predicted classes"),
      make("ul", { class: "voters", "aria-label": "the most trusted clients, each with its share of trust" }, ...voters),
      make("p", { class: "quiet" }, `${one.others} of ${one.votes.length} clients predict another class`)));
    Object.assign(node.dataset, { sample: one.index, disputed: one.disputed.toFixed(4), wrong: one.wrong.toFixed(4) });
    return node;
  };

  const more = document.getElementById("more"), FEW = 12;
  const drawCards = (run) => {
    const all = run.shown.map((_, index) => describeSample(run, index));
    if (state.sort !== "drawn") all.sort((a, b) => b[state.sort] - a[state.sort] || a.index - b.index);
    document.getElementById("cards").replaceChildren(...all.slice(0, state.all ? all.length : FEW).map((one) => card(run, one)));
    more.hidden = all.length <= FEW;
    more.textContent = state.all ? "Show fewer" : `Show all ${all.length}`;
  };

  const show = () => {
    const run = unpack(trustData.runs[state.run]);
    state.round = Math.min(state.round, run.rounds.length - 1);
    for (const select of selects) select.value = state.run;
    for (const slider of sliders) {
      slider.max = run.rounds.length - 1;
      slider.value = state.round;
      slider.setAttribute("aria-valuetext", `round ${run.rounds[state.round]}`);
      slider.nextElementSibling.textContent = run.rounds[state.round];
    }
    drawMap(run);
    summarise(run);
    drawCards(run);
  };
  for (const select of selects) select.addEventListener("change", () => { state.run = Number(select.value); show(); });
  for (const slider of sliders) slider.addEventListener("input", () => { state.round = Number(slider.value); show(); });
  for (const button of document.querySelectorAll("#sort button")) {
    button.addEventListener("click", () => {
      state.sort = button.dataset.sort;
      for (const other of document.querySelectorAll("#sort button")) other.setAttribute("aria-pressed", String(other === button));
      show();
    });
  }
  addEventListener("resize", () => drawMap(trustData.runs[state.run]));
  more.addEventListener("click", () => { state.all = !state.all; show(); });
  state.round = trustData.runs[state.run].rounds.length - 1;
  show();
}
