// Checks the pictures of a page: all parts must be inside the picture, and all texts must be readable.
const problems = [];
let pictures = 0;
let smallest = Infinity;
const read = new Set();
const shown = (element) => element.firstChild ? element.firstChild.textContent : element.className.baseVal;
for (const picture of document.querySelectorAll("svg")) {
  if (picture.parentElement.closest("svg") === null && picture.querySelector("svg")) continue;
  // Skip hidden pictures. The page shows another one in this window.
  if (picture.getClientRects().length === 0) continue;
  pictures += 1;
  const frame = picture.getBoundingClientRect();
  const texts = [...picture.querySelectorAll("text")].map((element) => [element, element.getBoundingClientRect()]);
  const within = (box) =>
    box.left >= frame.left - 1 && box.right <= frame.right + 1 && box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
  const meet = (a, b) => a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5;
  for (const [element, box] of texts) {
    for (const part of element.childNodes) read.add(part.textContent);
    smallest = Math.min(smallest, box.height);
    if (box.width === 0) problems.push(`nothing is shown of ${shown(element)}`);
    if (!within(box)) problems.push(`${shown(element)} leaves the picture`);
  }
  // Texts that touch each other cannot be read.
  const wide = (box) => ({ left: box.left - 1.5, right: box.right + 1.5, top: box.top, bottom: box.bottom });
  for (let i = 0; i < texts.length; i++)
    for (let j = 0; j < i; j++)
      if (meet(wide(texts[i][1]), wide(texts[j][1]))) problems.push(`${shown(texts[i][0])} lies on ${shown(texts[j][0])}`);
  for (const bar of picture.querySelectorAll("rect:not(.paper):not(.grace), circle")) {
    const box = bar.getBoundingClientRect();
    if (!within(box)) problems.push(`a ${shown(bar)} leaves the picture`);
    for (const [element, text] of texts)
      if (meet(box, text)) problems.push(`${shown(element)} lies on a ${bar.className.baseVal}`);
  }
}
const said = document.createElement("pre");
said.id = "measured";
const page = document.documentElement;
said.textContent = JSON.stringify({
  pictures, smallest, problems, texts: [...read], scrolls: page.scrollWidth > page.clientWidth,
});
document.body.append(said);
