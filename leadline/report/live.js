// Behind page.js on a page that follows trainings: asks for its content every few seconds and swaps in what is new.
// What a reader does stays: scrolling, zooms, what is selected, unfolded or being read.

const EVERY = 2000; // milliseconds
const main = document.querySelector("main");
const news = document.getElementById("news");
const begins = (section) => `${section.classList[0]} ${section.querySelector("h2").textContent}`;
let version = "";
let timer = 0; // of the next question; 0 while one is on its way

// The new sections in their order. One that was there before keeps its element: what does not move is not disturbed.
function swap(content) {
  const template = document.createElement("template");
  template.innerHTML = content.main; // all text in it is escaped, and the page's policy runs no other script
  const before = new Map();
  for (const section of main.children) before.set(begins(section), [...(before.get(begins(section)) ?? []), section]);
  const data = content.charts.values();
  let place = main.firstElementChild;
  for (const fresh of [...template.content.children]) {
    const known = before.get(begins(fresh))?.shift();
    const section = known ?? fresh;
    if (section === place) place = place.nextElementSibling;
    else main.insertBefore(section, place);
    if (section.classList.contains("chart")) show(section, data.next().value);
    else if (known) change(known, fresh);
  }
  for (const gone of [...before.values()].flat()) {
    charts.splice(0, charts.length, ...charts.filter((chart) => chart.section !== gone));
    gone.remove();
  }
}

function show(section, data) {
  const chart = charts.find((each) => each.section === section);
  if (chart) chart.update(data);
  else addChart(section, data);
}

// Words and tables: other text in the same boxes.
function change(known, fresh) {
  known.className = fresh.className;
  const unfolded = known.querySelector("details")?.open;
  if (fresh.querySelector("details") && unfolded) fresh.querySelector("details").open = true;
  if (known.innerHTML === fresh.innerHTML) return;
  const parts = (section) => [...section.querySelectorAll("summary, .box")];
  const scrolled = parts(known).map((part) => [part.scrollLeft, part.scrollTop]);
  const focused = parts(known).indexOf(document.activeElement);
  known.replaceChildren(...fresh.childNodes);
  parts(known).forEach((part, i) => ([part.scrollLeft, part.scrollTop] = scrolled[i] ?? [0, 0]));
  parts(known)[focused]?.focus({ preventScroll: true });
}

function tell(text, fine) {
  news.textContent = text;
  news.className = fine ? "" : "warning";
}

async function fetched() {
  const answer = await fetch("content", { headers: version ? { "If-None-Match": version } : {}, cache: "no-store" });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error(`the answer is ${answer.status}`);
  version = answer.headers.get("ETag");
  return answer.json();
}

async function follow() {
  timer = 0;
  const began = performance.now();
  if (!document.hidden) {
    let content = null;
    try {
      content = await fetched();
      tell(`Live: as of ${new Date().toLocaleTimeString()}.`, true);
    } catch {
      tell("No answer from leadline report --live: what follows is as it was. Trying again.", false);
    }
    if (content) swap(content);
  }
  timer = setTimeout(follow, Math.max(EVERY, 10 * (performance.now() - began))); // busy a tenth of the time at most
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden || !timer) return;
  clearTimeout(timer); // of a page in the background it may be a minute
  follow();
});
follow();
