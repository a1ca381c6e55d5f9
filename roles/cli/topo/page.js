"use strict";
const content = document.getElementById("content");
const details = document.getElementById("details");
const search = document.getElementById("search");
const boxes = () => [...content.querySelectorAll("g[data-details]")];
const name = (box) => box.dataset.details.split("\n")[0];
let chosen = "";
const choose = (box) => {
  chosen = name(box);
  boxes().forEach((b) => b.classList.toggle("chosen", b === box));
  details.textContent = box.dataset.details;
};
content.addEventListener("click", (e) => {
  const box = e.target.closest("g[data-details]");
  if (box !== null) choose(box);
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
  events.onmessage = (e) => {
    content.innerHTML = JSON.parse(e.data);
    live.textContent = "live";
    find();
    const box = boxes().find((b) => name(b) === chosen);
    if (box !== undefined) choose(box);
  };
  events.onerror = () => { live.textContent = "not connected"; };
}
