// Times in the browser's zone, keyboard shortcuts, and live updates of parts of a page.
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

// "/" moves the focus to the search field.
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

// Preferences are saved when they are selected; browsers without scripts show a button.
document.addEventListener("change", (event) => {
  if (event.target.closest("form[data-at-once]")) event.target.form.requestSubmit();
});

// The server sends an event when the cluster's data changes. Browsers open six connections to a server: a hidden page
// closes its own, or a seventh tab would never load.
const RETRY_MS = 10000;
let events = null;

function listen() {
  if (document.hidden) {
    events?.close();
    events = null;
  } else if (events === null) {
    events = new EventSource("/live");
    for (const name of ["refresh", "groups"]) {
      events.addEventListener(name, () => htmx.trigger(document.body, name));
    }
    events.addEventListener("error", () => {
      if (events?.readyState !== EventSource.CLOSED) return; // the browser reconnects
      events = null;
      refresh(); // shows the current data, or redirects to sign-in
      setTimeout(listen, RETRY_MS);
    });
  }
}

function refresh() {
  htmx.trigger(document.body, "refresh");
}

document.addEventListener("DOMContentLoaded", () => {
  if (document.querySelector("main[data-live-page]") === null) return;
  listen();
  document.addEventListener("visibilitychange", () => {
    listen();
    if (!document.hidden) refresh();
  });
});

// A part is not replaced while the user works in it: a focused link or button, or selected text.
document.addEventListener("htmx:beforeSwap", (event) => {
  const part = event.detail.target;
  const selection = window.getSelection();
  const busy = part.contains(document.activeElement) && document.activeElement !== document.body;
  if (part.dataset.live !== undefined && (busy || (selection && !selection.isCollapsed && part.contains(selection.anchorNode)))) {
    event.detail.shouldSwap = false;
  }
});

// Times in forms are in the browser's zone, which the form sends along. The server fills fields in UTC.
document.addEventListener("DOMContentLoaded", () => {
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  for (const form of document.querySelectorAll("form[data-zone]")) {
    for (const [field, value] of [["zone", name], ["zone_minutes", -new Date().getTimezoneOffset()]]) {
      const input = form.elements[field] ?? form.appendChild(document.createElement("input"));
      Object.assign(input, { type: "hidden", name: field, value });
    }
    for (const field of form.querySelectorAll("input[type=datetime-local]")) {
      const when = new Date(`${field.value}Z`);
      if (field.value) field.value = new Date(when - when.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
      document.getElementById(field.dataset.local).textContent = name;
    }
  }
});
