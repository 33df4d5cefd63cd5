"use strict";

// Sortable tables: a header's clicks go through ascending, descending and the order in which the table was written.
function sortTable(table, column) {
  const headers = [...table.tHead.rows[0].cells];
  const header = headers[column];
  const next = { none: "ascending", ascending: "descending", descending: "none" }[header.getAttribute("aria-sort")];
  for (const other of headers) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", next);
  const body = table.tBodies[0];
  const rows = [...body.rows].sort((a, b) => a.dataset.order - b.dataset.order);
  if (next !== "none") {
    const sign = next === "ascending" ? 1 : -1;
    const compare = header.dataset.kind === "text"
      ? (a, b) => a.localeCompare(b, "en", { numeric: true })
      : (a, b) => Number(a) - Number(b);
    const value = (row) => row.cells[column].dataset.value;
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      // Blank cells come last, whichever way the others are.
      if (x === "" || y === "") return (x === "") - (y === "");
      return sign * compare(x, y);
    });
  }
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tBodies[0].rows].forEach((row, i) => { row.dataset.order = i; });
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = header.querySelector("button");
    if (button) button.addEventListener("click", () => sortTable(table, column));
  });
}

// Copying: browsers that keep the clipboard from pages of the file system still have the older command.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

for (const box of document.querySelectorAll(".copy")) {
  const forms = JSON.parse(box.querySelector("script").textContent);
  const said = box.querySelector("[role=status]");
  box.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const done = await copyText(forms[button.dataset.form]);
    said.textContent = done ? `${button.textContent} copied.` : "The browser does not let this page copy.";
    clearTimeout(box.timer);
    box.timer = setTimeout(() => { said.textContent = ""; }, 4000);
  });
}

// The table of contents marks the part that is being read.
const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
const parts = [...links.keys()].map((id) => document.getElementById(id));
let waiting = false;
function markPart() {
  waiting = false;
  const passed = parts.filter((part) => part.getBoundingClientRect().top < innerHeight / 3);
  const current = passed[passed.length - 1] || parts[0];
  for (const [id, link] of links) link.setAttribute("aria-current", id === current.id);
}
addEventListener("scroll", () => {
  if (!waiting) requestAnimationFrame(markPart);
  waiting = true;
}, { passive: true });
if (parts.length) markPart();
