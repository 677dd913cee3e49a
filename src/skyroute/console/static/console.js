// Times in the reader's own zone, the keyboard, and what a swapped part of a page must not lose.
"use strict";

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
    const when = new Date(time.dateTime);
    const two = (number) => String(number).padStart(2, "0");
    time.title = time.textContent;
    time.textContent =
      `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ` +
      `${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}`;
  }
}

document.addEventListener("DOMContentLoaded", () => localTimes(document));
document.addEventListener("htmx:afterSettle", (event) => localTimes(event.detail.elt.parentElement ?? document));

// "/" goes to the search field, as in many places.
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    const search = document.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});

// Preferences take effect when they are chosen; without a script there is a button.
document.addEventListener("change", (event) => {
  if (event.target.closest("form[data-at-once]")) event.target.form.requestSubmit();
});

// Pages are told when there is something new. Browsers open six lines to a server and no more, so that a page which
// nobody sees gives up its own: a seventh tab would never come up.
const AGAIN_MS = 10000;
let line = null;

function listen() {
  if (document.hidden) {
    line?.close();
    line = null;
  } else if (line === null) {
    line = new EventSource("/live");
    line.addEventListener("look", look);
    line.addEventListener("error", () => {
      if (line?.readyState !== EventSource.CLOSED) return; // it comes back by itself
      line = null;
      look(); // which shows how things are without it, or leads to where one signs in
      setTimeout(listen, AGAIN_MS);
    });
  }
}

function look() {
  htmx.trigger(document.body, "look");
}

document.addEventListener("DOMContentLoaded", () => {
  if (document.querySelector("main[data-told]") === null) return;
  listen();
  document.addEventListener("visibilitychange", () => {
    listen();
    if (!document.hidden) look();
  });
});

// A part is not replaced while somebody is busy in it: a focused link or button, or marked text.
document.addEventListener("htmx:beforeSwap", (event) => {
  const part = event.detail.target;
  const marked = window.getSelection();
  const busy = part.contains(document.activeElement) && document.activeElement !== document.body;
  if (part.dataset.live !== undefined && (busy || (marked && !marked.isCollapsed && part.contains(marked.anchorNode)))) {
    event.detail.shouldSwap = false;
  }
});

// Times that somebody types are meant in their own zone, which a form with such fields tells. Fields come in UTC.
document.addEventListener("DOMContentLoaded", () => {
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  for (const form of document.querySelectorAll("form[data-zone]")) {
    for (const [field, value] of [["zone", name], ["zone_minutes", -new Date().getTimezoneOffset()]]) {
      const told = form.elements[field] ?? form.appendChild(document.createElement("input"));
      Object.assign(told, { type: "hidden", name: field, value });
    }
    for (const field of form.querySelectorAll("input[type=datetime-local]")) {
      const when = new Date(`${field.value}Z`);
      if (field.value) field.value = new Date(when - when.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
      document.getElementById(field.dataset.local).textContent = name;
    }
  }
});
