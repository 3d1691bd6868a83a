// Keep the state of nights and of other work on a page up to date, from /live.
(() => {
  const QUICK = 5000, SLOW = 60000; // milliseconds between two looks, while something runs and not
  const places = () => [...document.querySelectorAll("[data-live]")];
  const runs = () => places().some(place => place.querySelector("[data-runs]"));
  if (!places().length || document.querySelector("meta[http-equiv=refresh]")) return;

  async function look() {
    if (document.hidden) return again();
    const ran = runs();
    try {
      const answer = await fetch("/live");
      if (!answer.ok) return again();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const place of places()) {
        const now = page.querySelector(`[data-live="${CSS.escape(place.dataset.live)}"]`);
        if (now && now.innerHTML !== place.innerHTML) place.replaceChildren(...now.childNodes);
      }
    } catch { return again(); } // the server is away
    // What ended has results, which the rest of the page shows.
    if (ran && !runs()) return location.reload();
    again();
  }
  const again = () => setTimeout(look, runs() ? QUICK : SLOW);
  again();
})();
