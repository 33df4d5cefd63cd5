// The example browser of a section: filters, a list of what they leave, and one example with its bars.

const ROWS_AT_ONCE = 60;
const FOLDED_CLASSES = 12;
const HINT = "The longest bar fills its column; a line across a bar is people's share. Point at a bar, or tap it, for its numbers.";

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const decimals = (value, digits) => (value === "inf" ? "∞" : Number(value).toFixed(digits));
const klOf = (example, method) => {
  const kl = example.kl[method];
  return kl === null ? null : kl === "inf" ? Infinity : kl;
};

// What an order looks at; null comes last.
function orderKey(order, first, second) {
  if (order === "ambiguous") return (example) => example.entropy;
  if (order === "kl") return (example) => klOf(example, first);
  return (example) => {
    const [a, b] = [klOf(example, first), klOf(example, second)];
    if (a === null || b === null) return null;
    return a === b ? 0 : a - b;
  };
}

function choose(examples, filter) {
  const kept = examples.filter((example) =>
    (filter.class === null || example.majority.includes(filter.class)) &&
    example.entropy >= filter.from && example.entropy <= filter.to);
  const key = orderKey(filter.order, filter.first, filter.second);
  const keyed = kept.map((example) => [key(example), example]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return a === b ? 0 : b - a;
  });
  return keyed.map(([, example]) => example);
}

class ExampleBrowser {
  constructor(root) {
    const { classes, methods, examples } = JSON.parse(root.querySelector("script").textContent);
    Object.assign(this, { root, classes, methods, examples, allClasses: false, current: 0 });
    root.append(document.getElementById("browser-template").content.cloneNode(true));
    this.form = root.querySelector("form");
    this.list = root.querySelector(".list");
    this.fillFilters();
    this.form.addEventListener("input", (event) => this.onInput(event));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    root.addEventListener("click", (event) => this.onClick(event));
    root.addEventListener("keydown", (event) => this.onKey(event));
    this.list.addEventListener("scroll", () => this.growWhenNear(), { passive: true });
    const bars = root.querySelector(".bars-box");
    bars.addEventListener("pointerover", (event) => this.readOut(event));
    bars.addEventListener("click", (event) => this.readOut(event));
    this.filter();
  }

  fillFilters() {
    const { elements } = this.form;
    const majorities = new Map();
    for (const example of this.examples) {
      for (const c of example.majority) majorities.set(c, (majorities.get(c) || 0) + 1);
    }
    this.classes.forEach((name, c) => {
      if (majorities.has(c)) elements.class.append(new Option(`${name} (${majorities.get(c)})`, c));
    });
    for (const select of [elements.first, elements.second]) {
      this.methods.forEach((method, m) => select.append(new Option(method.name, m)));
    }
    if (this.methods.length > 1) elements.second.value = 1;
    const boxes = this.form.querySelector(".deliveries");
    this.methods.forEach((method, m) => {
      const box = make("input", { type: "checkbox", name: "delivery", value: m, checked: "" });
      boxes.append(make("label", { class: "chip" }, box, swatch(method), method.name));
    });
    boxes.hidden = !this.methods.length;
    for (const option of elements.order.options) {
      option.disabled = this.methods.length < { ambiguous: 0, kl: 1, gap: 2 }[option.value];
    }
  }

  onInput(event) {
    const { from, to } = this.form.elements;
    // The ends push each other, so that they cannot cross.
    if (event.target === from && Number(from.value) > Number(to.value)) to.value = from.value;
    if (event.target === to && Number(to.value) < Number(from.value)) from.value = to.value;
    if (event.target.name === "delivery") this.show();
    else this.filter();
  }

  onClick(event) {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.index) this.go(Number(button.dataset.index));
    const actions = {
      previous: () => this.go(this.current - 1),
      next: () => this.go(this.current + 1),
      reset: () => this.reset(),
      classes: () => { this.allClasses = !this.allClasses; this.show(); },
    };
    if (button.dataset.do) actions[button.dataset.do]();
  }

  onKey(event) {
    if (event.target.closest(".filters") || event.altKey || event.ctrlKey || event.metaKey) return;
    const inList = this.list.contains(event.target);
    const target = {
      ArrowLeft: this.current - 1,
      ArrowRight: this.current + 1,
      ...(inList ? { ArrowUp: this.current - 1, ArrowDown: this.current + 1 } : {}),
      Home: 0,
      End: this.shown.length - 1,
    }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    this.go(target);
    if (inList) this.list.querySelector("[aria-current]").focus();
  }

  reset() {
    this.form.reset();
    if (this.methods.length > 1) this.form.elements.second.value = 1;
    this.filter();
    this.form.elements.class.focus();
  }

  filter() {
    const { elements } = this.form;
    const order = elements.order.value;
    for (const field of this.form.querySelectorAll("[data-for]")) {
      field.hidden = !field.dataset.for.split(" ").includes(order);
    }
    elements.span.value = `${decimals(elements.from.value, 2)} to ${decimals(elements.to.value, 2)}`;
    const rails = this.form.querySelector(".rails");
    rails.style.setProperty("--from", elements.from.value);
    rails.style.setProperty("--to", elements.to.value);
    this.shown = choose(this.examples, {
      class: elements.class.value === "" ? null : Number(elements.class.value),
      from: Number(elements.from.value),
      to: Number(elements.to.value),
      order,
      first: Number(elements.first.value),
      second: Number(elements.second.value),
    });
    this.key = orderKey(order, Number(elements.first.value), Number(elements.second.value));
    this.root.querySelector(".count").textContent = `${this.shown.length} of ${this.examples.length} shown`;
    this.root.querySelector(".empty").hidden = this.shown.length > 0;
    this.root.querySelector(".stage").classList.toggle("nothing", !this.shown.length);
    this.list.replaceChildren();
    this.list.scrollTo(0, 0);
    this.current = 0;
    if (this.shown.length) this.go(0);
  }

  // Only as many entries as can be seen, and some more, are in the page.
  grow(count) {
    for (let i = this.list.children.length; i < Math.min(count, this.shown.length); i += 1) {
      const example = this.shown[i];
      const button = make("button", { type: "button", "data-index": i, "data-id": example.id });
      if (example.image) button.append(make("img", { src: example.image, alt: "", loading: "lazy" }));
      const words = example.text ?? example.majority.map((c) => this.classes[c]).join(" or ");
      const key = this.key(example);
      button.append(make("span", { class: "words", dir: "auto" }, words));
      button.append(make("span", { class: "key" }, key === null ? "–" : key === Infinity ? "∞" : key.toFixed(2)));
      this.list.append(make("li", {}, button));
    }
  }

  growWhenNear() {
    const { list } = this;
    const below = list.scrollHeight - list.scrollTop - list.clientHeight;
    const right = list.scrollWidth - list.scrollLeft - list.clientWidth;
    if (Math.max(below, right) < 600) this.grow(list.children.length + ROWS_AT_ONCE);
  }

  go(index) {
    if (index < 0 || index >= this.shown.length) return;
    this.current = index;
    if (index + ROWS_AT_ONCE / 2 > this.list.children.length) this.grow(index + ROWS_AT_ONCE);
    const old = this.list.querySelector("[aria-current]");
    if (old) old.removeAttribute("aria-current");
    const entry = this.list.children[index];
    entry.firstChild.setAttribute("aria-current", "true");
    // Not scrollIntoView, which would move the page as well.
    const { list } = this;
    if (entry.offsetTop < list.scrollTop || entry.offsetTop + entry.offsetHeight > list.scrollTop + list.clientHeight) {
      list.scrollTop = entry.offsetTop - list.clientHeight / 3;
    }
    const left = entry.offsetLeft;
    if (left < list.scrollLeft || left + entry.offsetWidth > list.scrollLeft + list.clientWidth) {
      list.scrollLeft = left - list.clientWidth / 3;
    }
    this.show();
  }

  show() {
    const example = this.shown[this.current];
    if (!example) return;
    const find = (selector) => this.root.querySelector(selector);
    find("[data-do=previous]").setAttribute("aria-disabled", this.current === 0);
    find("[data-do=next]").setAttribute("aria-disabled", this.current === this.shown.length - 1);
    find(".place").textContent = `${this.current + 1} of ${this.shown.length}`;
    find(".detail").dataset.id = example.id;
    const majority = example.majority.map((c) => this.classes[c]).join(" or ");
    const parts = (example.text ?? "").split("\n").filter((line) => line.trim());
    const lines = parts.map((line) => make("p", { dir: "auto" }, line));
    if (example.image) {
      const image = make("img", { alt: `Example ${example.id}, mostly voted ${majority}`, src: example.image });
      image.addEventListener("load", () => image.classList.toggle("small", image.naturalWidth <= 64));
      lines.unshift(image);
    }
    find(".input").replaceChildren(...lines);
    const facts = [
      `Example ${example.id}`,
      ...(example.votes === null ? [] : [`${example.votes} vote${example.votes === 1 ? "" : "s"}`]),
      `most voted: ${majority}`,
      `disagreement ${decimals(example.entropy, 2)}`,
    ];
    find(".facts").replaceChildren(...facts.map((fact) => make("li", {}, fact)));
    find(".subject").classList.toggle("pictured", Boolean(example.image));
    const boxes = [...this.form.querySelectorAll("[name=delivery]")];
    const chosen = boxes.filter((box) => box.checked).map((box) => Number(box.value));
    find(".bars-box").replaceChildren(this.bars(example, chosen));
    find(".readout").textContent = HINT;
    const toggle = find("[data-do=classes]");
    toggle.hidden = this.classes.length <= FOLDED_CLASSES;
    toggle.textContent = this.allClasses
      ? `Show only the ${FOLDED_CLASSES} likeliest classes` : `Show all ${this.classes.length} classes`;
  }

  classRows(example, series) {
    const all = this.classes.map((_, c) => c);
    if (this.allClasses || this.classes.length <= FOLDED_CLASSES) return all;
    const most = all.map((c) => Math.max(...series.map((values) => values[c])));
    const likeliest = all.sort((a, b) => most[b] - most[a]).slice(0, FOLDED_CLASSES);
    return likeliest.sort((a, b) => example.people[b] - example.people[a] || most[b] - most[a]);
  }

  bars(example, chosen) {
    const people = { name: "people", colour: null };
    const head = make("tr", {}, make("td"));
    for (const method of [people, ...chosen.map((m) => this.methods[m])]) {
      head.append(make("th", { scope: "col" }, swatch(method), method.name));
    }
    const body = make("tbody");
    const series = [example.people, ...chosen.map((m) => example.predictions[m]).filter(Boolean)];
    const longest = Math.max(...series.flat());
    for (const c of this.classRows(example, series)) {
      const row = make("tr", {}, make("th", { scope: "row", dir: "auto" }, this.classes[c]));
      row.append(barCell(people, example.people[c], null, longest, this.classes[c]));
      for (const m of chosen) {
        const value = example.predictions[m] === null ? null : example.predictions[m][c];
        row.append(barCell(this.methods[m], value, example.people[c], longest, this.classes[c]));
      }
      body.append(row);
    }
    const least = Math.min(...chosen.map((m) => klOf(example, m) ?? Infinity));
    const kl = make("tr", { class: "kl" }, make("th", { scope: "row" }, "KL to people"), make("td"));
    const seeds = make("tr", {}, make("th", { scope: "row" }, "seeds"), make("td"));
    for (const m of chosen) {
      const { name } = this.methods[m];
      const cell = make("td", { "data-series": name }, example.kl[m] === null ? "–" : decimals(example.kl[m], 3));
      cell.classList.toggle("best", chosen.length > 1 && klOf(example, m) === least);
      kl.append(cell);
      seeds.append(make("td", { "data-series": name }, String(example.seeds[m] ?? "–")));
    }
    const caption = make("caption", {}, "Share of people's votes and mean predicted probability of each class");
    const foot = make("tfoot", {}, ...(chosen.length ? [kl, seeds] : []));
    const table = make("table", { class: "bars" }, caption, make("thead", {}, head), body, foot);
    table.style.setProperty("--columns", 1 + chosen.length);
    return table;
  }

  readOut(event) {
    const cell = event.target.closest("td[data-say]");
    if (cell) this.root.querySelector(".readout").textContent = cell.dataset.say;
  }
}

function swatch(method) {
  const square = make("span", { class: "swatch", "aria-hidden": "true" });
  paint(square, method);
  return square;
}

// People have the colour of the text, in light and dark; a method that shares its colour is striped.
function paint(element, method) {
  if (method.colour) element.style.setProperty("--colour", method.colour);
  element.classList.toggle("striped", Boolean(method.striped));
}

function barCell(method, value, people, longest, className) {
  if (value === null) return make("td", { "data-series": method.name }, "–");
  const bar = make("span", { class: "bar" });
  bar.style.width = `${(100 * value) / longest}%`;
  paint(bar, method);
  const track = make("span", { class: "track", "aria-hidden": "true" }, bar);
  let say = `${className}: ${method.name} ${value.toFixed(3)}`;
  if (people !== null) {
    const mark = make("span", { class: "mark" });
    mark.style.left = `${(100 * people) / longest}%`;
    track.append(mark);
    const difference = value - people;
    say += `, people ${people.toFixed(3)}, difference ${difference < 0 ? "−" : "+"}${Math.abs(difference).toFixed(3)}`;
  }
  const number = make("span", { class: value < 0.005 ? "number nil" : "number" }, value.toFixed(2));
  return make("td", { "data-series": method.name, "data-say": say, title: say }, track, number);
}

// A browser is filled when it comes near the window: a page of many settings opens as quickly as one of few.
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((one) => one.isIntersecting)) {
    observer.unobserve(entry.target);
    new ExampleBrowser(entry.target);
  }
}, { rootMargin: "800px" });
for (const root of document.querySelectorAll(".browser")) observer.observe(root);
addEventListener("beforeprint", () => {
  for (const root of document.querySelectorAll(".browser")) {
    observer.unobserve(root);
    if (!root.querySelector(".filters")) new ExampleBrowser(root);
  }
});
