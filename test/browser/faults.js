(() => {
  const found = [], short = (text) => text.trim().slice(0, 60);
  const outside = (r, outer) => r.left < outer.left - 1 || r.right > outer.right + 1 || r.top < outer.top - 1 || r.bottom > outer.bottom + 1;
  const touch = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const page = document.documentElement;
  if (page.scrollWidth > innerWidth) found.push(`the page is ${page.scrollWidth} wide in a window of ${innerWidth}`);
  const numbers = (color) => { const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number); return { rgb: [r, g, b], a }; };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (e) => {
    for (; e !== null; e = e.parentElement) {
      const { rgb, a } = numbers(getComputedStyle(e).backgroundColor);
      if (a === 1) return rgb;
    }
    return [255, 255, 255];
  };
  const svg = page.localName === "svg";
  const texts = document.createTreeWalker(svg ? page : document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode, parent = text.parentElement;
    if (text.data.trim() === "" || ["script", "style", "title"].includes(parent.localName)) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    const box = parent.closest("button, td, th, li, pre, svg, body");
    const boxes = (svg ? [...document.querySelectorAll("rect")] : [box]).map((e) => e.getBoundingClientRect());
    for (const r of range.getClientRects()) { // of a drawing's boxes it may be beside some
      if (box.localName !== "pre" && boxes.some((b) => outside(r, b) && (!svg || touch(r, b)))) found.push(`outside its box: ${short(text.data)}`);
    }
    if (svg) continue;
    const of = [numbers(getComputedStyle(parent).color).rgb, paper(parent)].map(luminance);
    const contrast = (Math.max(...of) + 0.05) / (Math.min(...of) + 0.05);
    if (contrast < 4.5) found.push(`contrast ${contrast.toFixed(1)}: ${short(text.data)}`);
  }
  const boxes = [...document.querySelectorAll(svg ? "rect:not(.paper)" : "button")].map((e) => [e, e.getBoundingClientRect()]);
  boxes.forEach(([e, a], i) => boxes.slice(i + 1).forEach(([, b]) => {
    if (touch(a, b)) found.push(`on another box: ${short(e.textContent)}`);
  }));
  return [...new Set(found)].join("\n");
})()
