// What the controls of report.html do. page.py puts this file into the page, and writes the rest:
// a box is a token (data-p is its π, data-w its w in the run), an <li> a completion (data-a is A).
const all = what => [...document.querySelectorAll(what)];
const {step, at, model, mode, play, shaping, reset, graph, rug, own, now, counts} =
  Object.fromEntries(all("[id]").map(element => [element.id, element]));
for (const element of all(".live")) element.hidden = false;  // no dead controls without JavaScript

// ---- Curves ----

function readStep() {
  at.textContent = step.value;
  const x = 48 + 264 * step.value / step.max;
  for (const line of all(".mark")) line.setAttribute("d", `M${x} 12V100`);
  for (const span of all("[data-points]")) {
    const away = ([x]) => Math.abs(x - step.value);
    const [x, y] = JSON.parse(span.dataset.points).reduce((a, b) => away(b) < away(a) ? b : a);
    span.textContent = `${span.title} ${y}${x == step.value ? "" : ` at ${x}`}`;
  }
}
for (const svg of all("figure svg")) svg.onpointermove = event => {
  step.value = (320 * event.offsetX / svg.clientWidth - 48) / 264 * step.max;
  readStep();
};
(step.oninput = readStep)();

// ---- The weight of a token ----

const run = play && JSON.parse(play.dataset.run);  // the run's own settings
let settings = run;

// w of a token whose probability is π, as `weigh` in grpo_sg.py computes it.
function weigh(π, {shaping, alpha, tau, mu, L, U}) {
  if (shaping == "none") return 1;            // GRPO
  if (shaping == "ar") return 0.2 * π + 0.8;  // AR-Lopti
  const sigmoid = 1 / (1 + Math.exp(-π / tau));
  return Math.min(U, Math.max(L, alpha * (sigmoid - mu)));  // clip(..., L, U)
}

// Like the logs, keep four digits: a w this close to L or U counts as equal.
function round(x) {
  return +x.toPrecision(4);
}

// w of a box: what the run logged, until a control moves.
function weightOf(box) {
  return round(settings == run ? +box.dataset.w : weigh(+box.dataset.p, settings));
}

function drawCurve(path, settings) {
  const points = Array.from({length: 201}, (_, i) => {
    const π = i / 200;
    return `${48 + 264 * π} ${100 - 88 * weigh(π, settings) / graph.dataset.top}`;
  });
  path.setAttribute("d", "M" + points.join("L"));
}

function count(weights) {
  const L = round(settings.L), U = round(settings.U);
  const low = weights.filter(w => w <= L).length;
  const high = weights.filter(w => w >= U && w > L).length;
  const between = weights.length - low - high;
  const mean = weights.reduce((sum, w) => sum + w, 0) / weights.length;
  counts.textContent = `The mean of w over the ${weights.length} tokens below is ${round(mean)}.`;
  if (settings.shaping == "sg")
    counts.textContent += ` The weight is L for ${low} of them, between L and U for ${between}, `
      + `and U for ${high}.`;
  const w = weigh(0, settings);
  if (w == weigh(1, settings))  // w is monotone between them
    counts.textContent += ` With these settings every token has the weight ${round(w)}: plain GRPO`
      + (w == 1 ? "." : ` with ${round(w)} times the loss.`);
}

function color() {
  all("section").forEach((section, i) => section.hidden = i != model.value);
  const boxes = all("section:not([hidden]) [data-p]"), weights = boxes.map(weightOf);
  function size(box, w) {
    const π = +box.dataset.p, A = +box.closest("li").dataset.a;
    const wA = w * A;
    return {"w A": wA, "w A (1 − π)": wA * (1 - π), "w A − A": wA - A, w, π}[mode.value];
  }
  // The scale is that of the run's own weights, so a larger w looks larger.
  const most = Math.max(...boxes.map(box => Math.abs(size(box, +box.dataset.w)))) || 1;
  const level = mode.value == "w" || mode.value == "π";
  boxes.forEach((box, i) => {
    const w = weights[i], A = +box.closest("li").dataset.a, shade = size(box, w);
    box.title = `π = ${box.dataset.p}, w = ${w}, w A = ${(w * A).toPrecision(3)}; `
      + `GRPO gives A = ${A.toPrecision(3)}`;
    box.className = level ? "level" : shade > 0 ? "up" : shade < 0 ? "down" : "";
    box.classList.toggle("low", box.dataset.p < 1 / 3);
    box.style.setProperty("--size", Math.min(100, 70 * Math.abs(shade) / most) + "%");
    box.tabIndex = 0;
  });
  rug.setAttribute("d", boxes.map(box => `M${48 + 264 * box.dataset.p} 92V100`).join(""));
  count(weights);
}

// ---- The controls of the weight. tau's slider has the logarithm of tau to the base 3. ----

function showSettings() {
  shaping.value = settings.shaping;
  for (const slider of all("#play input")) {
    const value = settings[slider.id];
    slider.value = slider.id == "tau" ? Math.log(value) / Math.log(3) : value;
    slider.disabled = settings.shaping != "sg";
    slider.nextElementSibling.textContent = +value.toPrecision(3);
  }
  drawCurve(own, run);
  drawCurve(now, settings);
  color();
}

function change({target: {id, value}}) {
  settings = {...settings, [id]: id == "shaping" ? value : id == "tau" ? 3 ** value : +value};
  if (settings.L > settings.U) settings.L = settings.U = +value;  // one takes the other along
  showSettings();
}

if (model) {
  // Start with the first model that has a group with unequal rewards: before training there are
  // more low-probability tokens, so the weights differ most.
  const unequal = all("section").findIndex(section => section.querySelector("[open]"));
  if (unequal >= 0) model.value = unequal;
  model.onchange = mode.onchange = color;
  play.oninput = change;
  reset.onclick = () => {
    settings = run;
    showSettings();
  };
  showSettings();
}
