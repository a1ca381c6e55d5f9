"use strict";
const boxes = [...document.querySelectorAll("g[data-details]")];
const details = document.getElementById("details");
const search = document.getElementById("search");
const choose = (box) => {
  boxes.forEach((b) => b.classList.toggle("chosen", b === box));
  details.textContent = box.dataset.details;
};
boxes.forEach((b) => b.addEventListener("click", () => choose(b)));
const find = () => {
  const text = search.value.trim().toLowerCase();
  const found = boxes.filter((b) => b.dataset.details.toLowerCase().includes(text));
  boxes.forEach((b) => b.classList.toggle("faded", text !== "" && !found.includes(b)));
  document.getElementById("count").textContent = text === "" ? "" : found.length + " found";
  if (text !== "" && found.length > 0) {
    found[0].scrollIntoView({ block: "center" });
    if (found.length === 1) choose(found[0]);
  }
};
search.addEventListener("input", find);
if (location.hash !== "") {
  search.value = decodeURIComponent(location.hash.slice(1));
  find();
}
