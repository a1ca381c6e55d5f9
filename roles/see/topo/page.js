"use strict";
const content = document.getElementById("content");
const details = document.getElementById("details");
const search = document.getElementById("search");
const boxes = () => [...content.querySelectorAll("button")];
const name = (box) => box.dataset.details.split("\n")[0];
let chosen = "";
const choose = (box) => {
  chosen = name(box);
  boxes().forEach((b) => b.classList.toggle("chosen", b === box));
  details.textContent = box.dataset.details;
};
content.addEventListener("click", (e) => {
  const box = e.target.closest("button");
  if (box !== null) choose(box);
});
content.addEventListener("keydown", (e) => {
  const all = boxes();
  const next = all[all.indexOf(e.target) + { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[e.key]];
  if (next === undefined) return;
  e.preventDefault();
  next.focus();
});
const find = () => {
  const text = search.value.trim().toLowerCase();
  const found = boxes().filter((b) => b.dataset.details.toLowerCase().includes(text));
  boxes().forEach((b) => b.classList.toggle("faded", text !== "" && !found.includes(b)));
  document.getElementById("count").textContent = text === "" ? "" : found.length + " found";
  return text === "" ? [] : found;
};
const go = () => {
  const found = find();
  if (found.length > 0) found[0].scrollIntoView({ block: "center" });
  if (found.length === 1) choose(found[0]);
};
search.addEventListener("input", go);
search.addEventListener("keydown", (e) => {
  const found = e.key === "Enter" ? find() : [];
  if (found.length === 0) return;
  const next = found[(found.findIndex((b) => b.classList.contains("chosen")) + 1) % found.length];
  choose(next);
  next.scrollIntoView({ block: "center" });
});
if (location.hash !== "") {
  search.value = decodeURIComponent(location.hash.slice(1));
  go();
}
const live = document.getElementById("live");
if (live !== null) {
  const events = new EventSource("events");
  let seen = new Date().toLocaleTimeString();
  events.onmessage = (e) => {
    const focused = content.contains(document.activeElement) ? name(document.activeElement) : "";
    content.innerHTML = JSON.parse(e.data);
    seen = new Date().toLocaleTimeString();
    document.body.classList.remove("stale");
    live.textContent = "live";
    find();
    boxes().forEach((b) => {
      if (name(b) === chosen) choose(b);
      if (name(b) === focused) b.focus({ preventScroll: true });
    });
  };
  events.onerror = () => {
    document.body.classList.add("stale");
    live.textContent = "not connected: this is the node at " + seen;
  };
}
