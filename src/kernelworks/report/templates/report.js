"use strict";
(() => {
  const table = document.getElementById("verdicts");
  const body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.key ?? cell.textContent;
    const number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text;
  };
  const compare = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    header.firstElementChild.addEventListener("click", () => {
      const down = header.getAttribute("aria-sort") === "ascending";
      headers.forEach((other) => other.setAttribute("aria-sort", "none"));
      header.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(key(a, column), key(b, column)));
      body.append(...rows);
    });
  });
  const chips = [...document.querySelectorAll(".chip")];
  chips.forEach((chip) => {
    chip.addEventListener("click", () => {
      const shown = chip.getAttribute("aria-pressed") === "true" ? null : chip.dataset.status;
      chips.forEach((other) => other.setAttribute("aria-pressed", String(other.dataset.status === shown)));
      [...body.rows].forEach((row) => { row.hidden = shown !== null && row.dataset.status !== shown; });
    });
  });
})();
