
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const LEVELS = 254, NO_SCORE = 255; // as in lens/page.py
  const ALL = -1;
  const state = { layer: ALL, head: ALL, budget: 0, token: 0 };
  const first = []; // the row of each layer's first head
  const rows = data.layers.reduce((sum, layer) => (first.push(sum), sum + layer.heads), 0);
  const panels = []; // one for each method: its choices, its tokens' elements, its line in the readout
  const tokenInfo = []; // one for each token: its label, and its image part and index
  let packet, view, pointer = {};

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // Kept tokens

  function chosenRows(only = state.layer) {
    const found = [];
    data.layers.forEach((layer, place) => {
      if (only !== ALL && only !== place) return;
      for (let head = 0; head < layer.heads; head++)
        if (state.head === ALL || state.head === head) found.push(first[place] + head);
    });
    return found;
  }

  const percent = (x) => `${Number((100 * x).toPrecision(x < 0.1 ? 2 : 3))} %`;

  const step = (panel) => Math.min(state.budget, panel.choices.length - 1);
  const choiceOf = (panel) => panel.choices[step(panel)];

  function bit(panel, masks, row, token) {
    const number = step(panel), start = panel[masks][number >> 3];
    return (packet[start + row * data.tokens + token] >> (number & 7)) & 1;
  }

  // Return each token's share of these heads that keep it, or whose layer computed it
  function shareOf(panel, masks, chosen) {
    const counts = new Float64Array(data.tokens);
    for (const row of chosen)
      for (let token = 0; token < data.tokens; token++) counts[token] += bit(panel, masks, row, token);
    return counts.map((count) => (chosen.length ? count / chosen.length : 0));
  }

  const neverComputed = (panel, chosen) => (panel.computed && chosen.length
    ? shareOf(panel, "computed", chosen).map((share) => 1 - share) : new Float64Array(data.tokens));

  function score(start, row, token) {
    const code = packet[start + 8 * rows + row * data.tokens + token];
    if (code === NO_SCORE) return NaN;
    const low = view.getFloat32(start + 8 * row, true), high = view.getFloat32(start + 8 * row + 4, true);
    return low + (high - low) * (code / LEVELS) ** 2;
  }

  // Readout of a token

  function describe(panel, token) {
    const chosen = chosenRows(), many = chosen.length;
    const kept = Math.round(panel.held[token] * many);
    const never = Math.round(panel.never[token] * many);
    if (never === many) return "not computed";
    if (many === 1) return `${kept ? "kept" : "evicted"}, ${describeScore(panel, chosen, token)}`;
    const rest = never ? `, evicted by ${many - kept - never}, not computed in ${never}` : "";
    return `kept by ${kept} of ${many} heads${rest}, ${describeScore(panel, chosen, token)}`;
  }

  function describeScore(panel, chosen, token) {
    const choice = choiceOf(panel);
    if (choice.scores === null) return "not scored: everything fits";
    const spared = chosen.filter((row) => bit(panel, "protected", row, token));
    if (spared.length === chosen.length) return "always";
    const free = chosen.filter((row) => !bit(panel, "protected", row, token));
    const known = free.map((row) => score(choice.scores, row, token)).filter((x) => !Number.isNaN(x));
    if (!known.length) return "no score";
    const mean = known.reduce((sum, x) => sum + x, 0) / known.length;
    const also = spared.length ? `, always in ${spared.length}` : "";
    return `${chosen.length === 1 ? "score" : "mean score"} ${short(mean)}${also}`;
  }

  function short(x) {
    if (x === 0) return "0";
    const size = Math.abs(x);
    return size >= 1e-3 && size < 1e5 ? String(Number(x.toPrecision(3))) : x.toExponential(1);
  }

  function sum(panel) {
    const all = tokenInfo.map((_, token) => token), many = chosenRows().length;
    const visual = all.filter((token) => tokenInfo[token].image);
    const text = all.filter((token) => !tokenInfo[token].image);
    const mean = (tokens) => tokens.reduce((total, token) => total + panel.held[token], 0);
    const of = (tokens, what) =>
      `${mean(tokens).toFixed(many > 1 ? 1 : 0)} of ${tokens.length}${what}`;
    const split = visual.length ? `: ${of(visual, " visual")}, ${of(text, " text")}` : "";
    const { budget } = choiceOf(panel);
    const prefix = budget ? `Budget ${budget}. ` : "";
    const overall = `${of(all, " tokens")} (${percent(mean(all) / all.length)})`;
    const never = panel.never.reduce((total, share) => total + share, 0);
    const kept = mean(all), digits = many > 1 ? 1 : 0;
    const rest = panel.computed ? ` Evicted: ${(all.length - kept - never).toFixed(digits)}; ` +
      `not computed: ${never.toFixed(digits)}.` : "";
    return `${prefix}Keeps ${overall}${many > 1 ? " per head, on average" : ""}${split}.${rest}`;
  }

  // Share of tokens that each layer keeps, over the selected heads

  function profile(panel) {
    panel.shares = data.layers.map((_, place) => {
      const chosen = chosenRows(place);
      let count = 0;
      for (const row of chosen)
        for (let token = 0; token < data.tokens; token++) count += bit(panel, "kept", row, token);
      return chosen.length ? count / chosen.length / data.tokens : 0;
    });
  }

  function draw(panel, tallest) {
    const { shares } = panel;
    const least = Math.min(...shares), best = Math.max(...shares);
    const range = percent(least) === percent(best) ? percent(best) : `${percent(least)} to ${percent(best)}`;
    panel.bars.setAttribute("aria-label", `Kept in each layer: ${range}`);
    panel.range.textContent = `${range} a layer`;
    [...panel.bars.children].forEach((bar, place) => {
      bar.style.height = `${100 * shares[place] / tallest}%`;
      bar.title = `layer ${data.layers[place].index}: ${percent(shares[place])}`;
      bar.classList.toggle("on", state.layer === ALL || state.layer === place);
    });
  }

  // Share of each video frame's tokens that are kept

  function film(panel, tallest) {
    const shares = panel.frames;
    panel.film.setAttribute("aria-label",
      `Kept of each frame: ${percent(Math.min(...shares))} to ${percent(Math.max(...shares))}`);
    [...panel.film.children].forEach((bar, place) => {
      bar.style.height = `${100 * shares[place] / tallest}%`;
      bar.title = `frame at ${data.frames[place].time} s: ${percent(shares[place])}`;
    });
  }

  const share = (panel, { places: tokens }) =>
    tokens.reduce((total, token) => total + panel.held[token], 0) / tokens.length;

  // Display

  function update() {
    const chosen = chosenRows();
    for (const panel of panels) {
      panel.held = shareOf(panel, "kept", chosen);
      panel.never = neverComputed(panel, chosen);
      panel.held.forEach((share, token) => {
        const element = panel.tokens[token], never = panel.never[token];
        if (element.dataset.held === `${share} ${never}`) return;
        element.dataset.held = `${share} ${never}`;
        element.style.setProperty("--held", share);
        element.style.setProperty("--veil", 1 - Math.sqrt(share)); // as in kept_picture.py
        element.style.setProperty("--never", never);
      });
      panel.line.textContent = sum(panel);
      profile(panel);
      panel.frames = data.frames.map((frame) => share(panel, frame));
      answered(panel);
    }
    const tallest = Math.max(...panels.flatMap((panel) => panel.shares));
    for (const panel of panels) draw(panel, tallest);
    const brightest = Math.max(...panels.flatMap((panel) => panel.frames));
    if (data.frames.length) for (const panel of panels) film(panel, brightest || 1);
    name("layer", state.layer === ALL ? `all ${data.layers.length}` : `${data.layers[state.layer].index}`);
    name("head", state.head === ALL ? "all, mean" : `${state.head}`);
    const budgets = new Set(panels.filter((p) => p.choices.length > 1).map((p) => choiceOf(p).budget));
    name("budget", [...budgets].join(", "));
    updateReadout();
  }

  // Answers

  function answered(panel) {
    const { answer } = choiceOf(panel);
    if (!answer) return;
    panel.answer.classList.toggle("same", answer.same);
    const mark = answer.same ? "✓ The full cache's answer" : "Not the full cache's answer";
    panel.answer.replaceChildren(make("span", { class: "mark" }, mark), ...words(answer));
  }

  const words = ({ text, cut }) => [make("span", { class: "text", dir: "auto" }, text || "(nothing)"),
    ...(cut ? [make("span", { class: "sign", title: "cut off at the length limit" }, " …")] : [])];

  function name(slider, text) {
    at(`${slider}-now`).textContent = text;
    at(slider).setAttribute("aria-valuetext", text);
  }

  function updateReadout() {
    at("where").textContent = tokenInfo[state.token].label;
    for (const panel of panels) {
      panel.state.textContent = describe(panel, state.token);
      panel.state.title = panel.state.textContent;
    }
    const heights = panels.map((panel) => panel.state.offsetHeight);
    panels.forEach(({ state: line }, place) => { // lines never shrink, or the page would jump under the pointer
      line.style.minHeight = `${heights[place]}px`;
    });
  }

  function point(token) {
    for (const panel of panels) {
      panel.tokens[state.token].classList.remove("here");
      panel.tokens[token].classList.add("here");
    }
    state.token = token;
    updateReadout();
  }

  // Building

  function make(kind, attributes = {}, ...inside) {
    const element = document.createElement(kind);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  }

  const token = (place, kind) => make("span", { class: kind, role: "option", "data-at": place,
    tabindex: "-1", "aria-label": tokenInfo[place].label });

  function word({ at: place, text, special }) {
    const element = token(place, special ? "word special" : "word");
    if (special || !/^\s*$/.test(text)) return element.append(text), element;
    const signs = text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");
    element.append(make("span", { class: "sign" }, signs || "‥"));
    const after = "\n".repeat(text.split("\n").length - 1);
    if (after) element.append(after);
    return element;
  }

  function picture(part) {
    const cells = make("span", { class: "cells", role: "presentation" },
      ...part.places.map((place) => token(place, "cell")));
    cells.style.gridTemplateColumns = `repeat(${part.columns}, minmax(0, 1fr))`;
    const image = make("img", { src: data.images[part.image], alt: "" });
    return make("span", { class: "picture", role: "presentation", title: part.name }, image, cells);
  }

  function build(method) {
    const line = make("p", { class: "sum" }), state = make("dd");
    const answer = make("p", { class: "answer" });
    answer.hidden = !data.answer;
    const bars = make("div", { class: "bars", role: "img" }, ...data.layers.map(() => make("i")));
    const range = make("span", { class: "range" });
    const film = make("div", { class: "film", role: "img" }, ...data.frames.map(() => make("i")));
    const times = make("span", { class: "range" }, data.frames.length ? span(data.frames) : "");
    const timeline = make("div", { class: "profile" }, film, times);
    timeline.hidden = !data.frames.length;
    const prompt = make("div", { class: "prompt", role: "listbox",
      "aria-label": `The prompt's tokens under ${method.name}` });
    for (const part of data.parts) {
      if (part.words) prompt.append(make("span", { class: "words", role: "presentation" }, ...part.words.map(word)));
      else prompt.append(...(data.frames.length ? [make("span", { class: "caption" }, part.name)] : []), picture(part));
    }
    const tokens = [];
    for (const element of prompt.querySelectorAll("[data-at]")) tokens[element.dataset.at] = element;
    tokens[0].tabIndex = 0;
    at("methods").append(make("section", { class: "method", "aria-label": method.name },
      make("h2", {}, method.name), line, make("div", { class: "profile" }, bars, range), timeline, answer, prompt));
    at("states").append(make("div", {}, make("dt", { title: method.name }, method.name), state));
    const panel = { ...method, tokens, line, state, answer, prompt, bars, range, film, held: [], never: [] };
    panels.push(panel);
    listen(panel);
    [...film.children].forEach((bar, place) => bar.addEventListener("click", () =>
      tokens[data.frames[place].places[0]].scrollIntoView({ block: "center" })));
  }

  const span = (frames) => `${frames[0].time} to ${frames[frames.length - 1].time} s`;

  function locate() {
    for (const part of data.parts) {
      if (part.words) for (const item of part.words) tokenInfo[item.at] = { label: wording(item) };
      else part.places.forEach((place, index) => {
        const row = Math.floor(index / part.columns), column = index % part.columns;
        tokenInfo[place] = { image: true, part, index,
          label: `Token ${place}: ${part.name}, row ${row + 1}, column ${column + 1}` };
      });
    }
  }

  function wording({ at: place, text, special }) {
    if (special) return `Token ${place}: ${text} (special)`;
    if (!text) return `Token ${place}: continues the character before it`;
    return `Token ${place}: ${JSON.stringify(text)}`;
  }

  // Pointer and keys

  function listen(panel) {
    const from = (event) => event.target.closest("[data-at]");
    panel.prompt.addEventListener("pointerover", (event) => {
      const { clientX: x, clientY: y } = event;
      if (x === pointer.x && y === pointer.y) return; // the page scrolled under a still pointer
      pointer = { x, y };
      if (from(event)) point(Number(from(event).dataset.at));
    });
    panel.prompt.addEventListener("focusin", (event) => {
      const element = from(event);
      for (const other of panel.prompt.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
      element.tabIndex = 0;
      point(Number(element.dataset.at));
    });
    panel.prompt.addEventListener("keydown", (event) => {
      const to = target(Number(from(event).dataset.at), event.key);
      if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      panel.tokens[Math.min(Math.max(to, 0), data.tokens - 1)].focus();
    });
  }

  function target(here, key) {
    const { part, index } = tokenInfo[here];
    const row = (by) => {
      const there = part ? part.places[index + by * part.columns] : undefined;
      return there === undefined ? beyond(here, by) : there;
    };
    const keys = { ArrowLeft: () => here - 1, ArrowRight: () => here + 1, ArrowUp: () => row(-1),
      ArrowDown: () => row(1), Home: () => 0, End: () => data.tokens - 1 };
    return keys[key]?.();
  }

  // Return the next token outside the run of text or image that the token belongs to
  function beyond(here, by) {
    const { part } = tokenInfo[here];
    let there = here + by;
    while (tokenInfo[there] && tokenInfo[there].part === part) there += by;
    return there;
  }

  function slide(slider, last) {
    const element = at(slider);
    element.max = last;
    element.disabled = last <= Number(element.min);
    element.addEventListener("input", () => {
      state[slider] = Number(element.value);
      update();
    });
    state[slider] = Number(element.value); // browsers may restore the slider's value
  }

  async function start() {
    packet = await unpacked(data.packet);
    view = new DataView(packet.buffer);
    locate();
    data.methods.forEach(build);
    slide("layer", data.layers.length - 1);
    slide("head", Math.max(...data.layers.map((layer) => layer.heads)) - 1);
    slide("budget", Math.max(...panels.map((panel) => panel.choices.length)) - 1);
    const visual = tokenInfo.filter((place) => place.image).length;
    at("facts").textContent = `${data.tokens} tokens, ${visual} of them visual; ` +
      `${data.layers.length} layers, ${rows} KV heads in all`;
    at("note").textContent = data.note;
    at("note").hidden = !data.note;
    if (data.answer) at("answer").append(...words(data.answer));
    at("answer").hidden = !data.answer;
    at("film").hidden = !data.frames.length;
    at("fates").hidden = !data.methods.some((method) => method.computed);
    at("budget").closest(".slider").hidden = at("budget").disabled;
    at("desk").hidden = at("legend").hidden = false;
    update();
    document.documentElement.dataset.ready = "true";
  }

  start().catch((error) => {
    at("trouble").textContent = `This browser cannot show the lens: ${error.message}`;
    at("trouble").hidden = false;
    throw error;
  });
})();
